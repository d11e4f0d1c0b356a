// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"braid.dev/braid/api/v1alpha1"
)

// tables reads lists as kubectl get does: of each object the columns alone. Those of a large
// cluster have some kilobytes where the objects have tens of megabytes.
type tables struct{ client rest.Interface }

func (p *plugin) tables() (*tables, error) {
	config, err := p.config()
	if err != nil {
		return nil, err
	}
	return newTables(config)
}

func newTables(config *rest.Config) (*tables, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &v1alpha1.GroupVersion, "/apis"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	return &tables{client}, nil
}

// row is what a table has of an object.
type row struct {
	columns map[string]int
	cells   []any
}

const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"

// read reads the objects at a path of the API that these fields have.
func (t *tables) read(ctx context.Context, path string, selected fields.Set) ([]row, error) {
	request := t.client.Get().AbsPath(path).SetHeader("Accept", asTable).Param("includeObject", "None")
	if len(selected) > 0 { // a moment old is good enough to find something
		request = request.Param("fieldSelector", selected.String()).Param("resourceVersion", "0")
	}
	text, err := bodyOf(request.Do(ctx))
	if err != nil {
		return nil, err
	}
	var table metav1.Table
	if err := json.Unmarshal(text, &table); err != nil {
		return nil, fmt.Errorf("failed to parse a table: %w", err)
	}
	columns := map[string]int{}
	for i, column := range table.ColumnDefinitions {
		columns[column.Name] = i
	}
	rows := make([]row, len(table.Rows))
	for i := range table.Rows {
		rows[i] = row{columns, table.Rows[i].Cells}
	}
	return rows, nil
}

// bodyOf is what the server answered, or its own word on why it did not: the error of Raw is
// "unknown" where it refused.
func bodyOf(answer rest.Result) ([]byte, error) {
	if err := answer.Error(); err != nil {
		return nil, err
	}
	return answer.Raw()
}

// text is empty where the object does not have it.
func (r row) text(column string) string {
	text, _ := r.cell(column).(string)
	return text
}

// number is false where the object does not have it, or the table not the column.
func (r row) number(column string) (int64, bool) {
	number, is := r.cell(column).(float64)
	return int64(number), is
}

func (r row) cell(column string) any {
	if at, has := r.columns[column]; has && at < len(r.cells) {
		return r.cells[at]
	}
	return nil
}

// plansPath is where their list is.
var plansPath = "/apis/" + v1alpha1.GroupVersion.String() + "/mptcpnodeplans"

// counted is what is known of a plan that was not read.
type counted struct {
	node string
	// summary is nil where nothing is to be believed: the agent has not seen the plan's last
	// change, or is older than the summary.
	summary *v1alpha1.PlanSummary
}

// plans has all of them by name.
func (t *tables) plans(ctx context.Context) ([]counted, error) {
	rows, err := t.read(ctx, plansPath, nil)
	if err != nil {
		return nil, err
	}
	all := make([]counted, len(rows))
	for i, row := range rows {
		all[i] = counted{row.text("Name"), summaryIn(row)}
	}
	return all, nil
}

func summaryIn(row row) *v1alpha1.PlanSummary {
	generation, known := row.number("Generation")
	observed, told := row.number("Observed")
	if !known || !told || generation != observed {
		return nil
	}
	summary := &v1alpha1.PlanSummary{}
	for column, into := range map[string]*int32{
		"Pods": &summary.Pods, "VMs": &summary.VirtualMachines, "VMPods": &summary.VirtualMachinePods, "Noteworthy": &summary.Noteworthy,
		"MPTCP": &summary.MPTCP, "PlainTCP": &summary.PlainTCP, "Sending": &summary.Sending,
	} {
		count, told := row.number(column)
		if !told {
			return nil
		}
		*into = int32(count)
	}
	return summary
}
