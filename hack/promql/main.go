// SPDX-License-Identifier: Apache-2.0

// Command promql answers PromQL queries from recorded scrapes with Prometheus'
// own engine and storage, so that a test can see what rules and dashboards get
// without a Prometheus that runs. It reads a Request from its standard input and
// writes a list of Answers, both as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"
)

// Request has scrapes to load and queries to answer from them.
type Request struct {
	Scrapes []Scrape `json:"scrapes"`
	Queries []string `json:"queries"`
	// Time is when the queries are asked, in milliseconds since 1970.
	Time int64 `json:"time"`
}

// Scrape is what a target answered at a time, and the labels that Prometheus gives
// to the target. Labels of the text win, as honorLabels has it.
type Scrape struct {
	Time   int64             `json:"time"`
	Labels map[string]string `json:"labels"`
	Text   string            `json:"text"`
}

// Answer is what a query gets.
type Answer struct {
	// Error says why the query cannot be answered; it is empty if it can.
	Error string `json:"error,omitempty"`
	// Series are the labels and values that the query returns.
	Series []Series `json:"series"`
	// Empty are the selectors in the query that select nothing at all.
	Empty []string `json:"empty,omitempty"`
}

// Series is one element of an instant vector.
type Series struct {
	Labels map[string]string `json:"labels"`
	Value  string            `json:"value"`
}

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "promql:", err)
		os.Exit(1)
	}
}

// engine answers queries from what was loaded.
type engine struct {
	*promql.Engine
	store *teststorage.TestStorage
	at    time.Time
}

func run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	var request Request
	if err := json.NewDecoder(in).Decode(&request); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	store, err := teststorage.NewWithError()
	if err != nil {
		return fmt.Errorf("opening a storage: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	for _, scrape := range request.Scrapes {
		if err := load(ctx, store, scrape); err != nil {
			return fmt.Errorf("loading the scrape of %v: %w", scrape.Labels, err)
		}
	}
	options := promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute}
	engine := engine{promql.NewEngine(options), store, time.UnixMilli(request.Time)}
	answers := make([]Answer, 0, len(request.Queries))
	for _, query := range request.Queries {
		answers = append(answers, engine.answer(ctx, query))
	}
	return json.NewEncoder(out).Encode(answers)
}

// load appends the samples of a scrape.
func load(ctx context.Context, store storage.Appendable, scrape Scrape) error {
	appender := store.Appender(ctx)
	lines := textparse.NewPromParser([]byte(scrape.Text), labels.NewSymbolTable(), false)
	for {
		entry, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return appender.Commit()
		}
		if err == nil && entry == textparse.EntrySeries {
			_, _, value := lines.Series()
			_, err = appender.Append(0, scrape.series(lines), scrape.Time, value)
		}
		if err != nil {
			return errors.Join(err, appender.Rollback())
		}
	}
}

// series are the labels of a line, and those of the target that it has not.
func (s Scrape) series(line textparse.Parser) labels.Labels {
	var own labels.Labels
	line.Labels(&own)
	all := labels.NewBuilder(labels.FromMap(s.Labels))
	own.Range(func(label labels.Label) { all.Set(label.Name, label.Value) })
	return all.Labels()
}

// answer evaluates a query, and each selector in it by itself.
func (e engine) answer(ctx context.Context, query string) Answer {
	expression, err := parser.ParseExpr(query)
	if err != nil {
		return Answer{Error: err.Error()}
	}
	var answer Answer
	if answer.Series, err = e.evaluate(ctx, query); err != nil {
		return Answer{Error: err.Error()}
	}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		found, err := e.evaluate(ctx, selector.String())
		if err == nil && len(found) == 0 {
			answer.Empty = append(answer.Empty, selector.String())
		}
		return err
	})
	return answer
}

func (e engine) evaluate(ctx context.Context, query string) ([]Series, error) {
	prepared, err := e.NewInstantQuery(ctx, e.store, nil, query, e.at)
	if err != nil {
		return nil, fmt.Errorf("preparing %s: %w", query, err)
	}
	defer prepared.Close()
	vector, err := prepared.Exec(ctx).Vector()
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: %w", query, err)
	}
	series := make([]Series, 0, len(vector))
	for _, sample := range vector {
		series = append(series, Series{sample.Metric.Map(), strconv.FormatFloat(sample.F, 'g', -1, 64)})
	}
	return series, nil
}
