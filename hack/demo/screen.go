// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// screen writes for people: on a terminal with a picture that moves, elsewhere in
// plain lines.
type screen struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
}

func newScreen(out *os.File) *screen {
	return newScreenFor(out, term.IsTerminal(int(out.Fd())))
}

func newScreenFor(out io.Writer, terminal bool) *screen {
	return &screen{out: out, terminal: terminal}
}

func (s *screen) print(format string, arguments ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format, arguments...)
}

func (s *screen) title(text string) { s.print("\n%s\n", text) }

// say writes one line.
func (s *screen) say(format string, arguments ...any) { s.print("   "+format+"\n", arguments...) }

func (s *screen) remark(text string) { s.say("%s", text) }

func (s *screen) command(text string) { s.print("   $ %s\n", text) }

func (s *screen) output(text string) {
	for line := range strings.Lines(text) {
		s.print("     %s\n", strings.TrimRight(line, "\n"))
	}
}

// reminder is how often a step that goes on is told of.
const reminder = 5 * time.Second

// step tells when something is done, and meanwhile that it goes on.
func (s *screen) step(what string) func(error) {
	start := time.Now()
	ticker, finished := time.NewTicker(reminder), make(chan struct{})
	go func() {
		for {
			select {
			case <-finished:
				return
			case <-ticker.C:
				s.say("… %s: %.0f s so far", what, time.Since(start).Seconds())
			}
		}
	}()
	return func(err error) {
		ticker.Stop()
		close(finished)
		sign := "✓"
		if err != nil {
			sign = "✗"
		}
		s.say("%s %-70s %5.1f s", sign, what, time.Since(start).Seconds())
	}
}

// picture shows the rate of each path.
type picture struct {
	screen *screen
	paths  []string
	full   float64
	drawn  bool
	last   time.Time
}

func (s *screen) picture(paths []string, fullMbit float64) *picture {
	return &picture{screen: s, paths: paths, full: fullMbit}
}

// plainInterval is how often a line is written where there is no terminal.
const plainInterval = time.Second

// draw shows rates in Mbit/s, over those of before where there is a terminal.
func (p *picture) draw(rates map[string]float64) {
	if rates == nil {
		return
	}
	if p.screen.terminal {
		if p.drawn {
			p.screen.print("\x1b[%dA", len(p.paths))
		}
		p.drawn = true
		p.screen.print("%s", p.bars(rates))
		return
	}
	if now := time.Now(); now.Sub(p.last) >= plainInterval {
		p.last = now
		p.screen.say("%s", p.line(rates))
	}
}

// bars is one bar for each path; each line clears what was there.
func (p *picture) bars(rates map[string]float64) string {
	const width = 40
	var text strings.Builder
	for _, path := range p.paths {
		filled := min(width, max(0, int(rates[path]/p.full*width+0.5)))
		fmt.Fprintf(&text, "\x1b[2K     %-8s %s%s %6.1f Mbit/s\n",
			path, strings.Repeat("█", filled), strings.Repeat("░", width-filled), rates[path])
	}
	return text.String()
}

func (p *picture) line(rates map[string]float64) string {
	var parts []string
	for _, path := range p.paths {
		parts = append(parts, fmt.Sprintf("%s %.1f", path, rates[path]))
	}
	return strings.Join(parts, ", ") + " Mbit/s"
}
