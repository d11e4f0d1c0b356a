// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// terminal is where a user looks and types.
type terminal struct{ in, out *os.File }

// terminalOf is false where one of both is something else.
func terminalOf(out io.Writer, in io.Reader) (terminal, bool) {
	outFile, ok1 := out.(*os.File)
	inFile, ok2 := in.(*os.File)
	if !ok1 || !ok2 || !term.IsTerminal(int(outFile.Fd())) || !term.IsTerminal(int(inFile.Fd())) {
		return terminal{}, false
	}
	return terminal{inFile, outFile}, true
}

// What terminals understand.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the other screen, no cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
	reverseOn   = "\x1b[7m"
	reverseOff  = "\x1b[0m"
)

// view is what the user chose to see.
type view interface {
	draw(width, height int) string
	press(key string)
	// refresh takes what the nodes said last, tell a mistake.
	refresh()
	tell(mistake string)
	// over: the user left.
	over() bool
}

// interact keeps the screen up to date until the user leaves.
func (t *topper) interact(ctx context.Context, terminal terminal, v view) (err error) {
	before, err := term.MakeRaw(int(terminal.in.Fd()))
	if err != nil {
		return fmt.Errorf("preparing the terminal: %w", err)
	}
	_, _ = io.WriteString(terminal.out, enterScreen) // what cannot be shown is not missed
	defer func() {
		_, _ = io.WriteString(terminal.out, leaveScreen)
		err = errors.Join(err, term.Restore(int(terminal.in.Fd()), before))
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go t.follow(ctx, func(err error) {
		select {
		case failed <- err:
		default:
		}
	})
	return t.redraw(ctx, terminal, v, failed)
}

func (t *topper) redraw(ctx context.Context, terminal terminal, v view, failed <-chan error) error {
	keys := readKeys(ctx, terminal.in)
	for !v.over() {
		width, height, err := term.GetSize(int(terminal.out.Fd()))
		if err != nil || width == 0 || height == 0 { // a terminal that nobody told its size
			width, height = 80, 24
		}
		if _, err := io.WriteString(terminal.out, v.draw(width, height)); err != nil {
			return fmt.Errorf("writing to the terminal: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case key, open := <-keys:
			if !open {
				return nil
			}
			v.press(key)
		case <-t.changed:
			v.refresh()
		case err := <-failed:
			v.tell(err.Error())
		}
	}
	return nil
}

// readKeys tells what is typed: a letter, or the name of a key.
func readKeys(ctx context.Context, in io.Reader) <-chan string {
	keys := make(chan string)
	go func() {
		defer close(keys)
		for buffer := make([]byte, 256); ; {
			n, err := in.Read(buffer)
			if err != nil {
				return
			}
			for _, key := range keysIn(string(buffer[:n])) {
				select {
				case keys <- key:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return keys
}

// Keys that are no letters.
const (
	keyUp, keyDown, keyLeft, keyRight = "up", "down", "left", "right"
	keyPageUp, keyPageDown            = "page up", "page down"
	keyEnter, keyEscape, keyDelete    = "enter", "escape", "delete"
	keyInterrupt                      = "interrupt"
)

// sequences are what terminals send for a key.
var sequences = []struct{ sent, key string }{
	{"\x1b[A", keyUp}, {"\x1bOA", keyUp}, {"\x1b[B", keyDown}, {"\x1bOB", keyDown},
	{"\x1b[C", keyRight}, {"\x1bOC", keyRight}, {"\x1b[D", keyLeft}, {"\x1bOD", keyLeft},
	{"\x1b[5~", keyPageUp}, {"\x1b[6~", keyPageDown},
	{"\r", keyEnter}, {"\n", keyEnter}, {"\x1b", keyEscape}, {"\x7f", keyDelete}, {"\b", keyDelete}, {"\x03", keyInterrupt},
}

func keysIn(typed string) (keys []string) {
next:
	for typed != "" {
		for _, s := range sequences {
			if strings.HasPrefix(typed, s.sent) {
				keys, typed = append(keys, s.key), typed[len(s.sent):]
				continue next
			}
		}
		_, size := utf8.DecodeRuneInString(typed)
		keys, typed = append(keys, typed[:size]), typed[size:]
	}
	return keys
}

// screen is what the user chose to see.
type screen struct {
	top  *Top
	read bool // a node has said something
	note string

	sort    int
	reverse bool
	filter  string
	typing  bool // a filter
	first   int  // line
	shown   int  // lines, when it was drawn last
	left    bool
}

// subflowScreen shows what a topper knows of subflows.
type subflowScreen struct {
	*screen
	source *topper
}

func (v *subflowScreen) draw(width, height int) string {
	if v.top == nil {
		v.top = v.source.snapshot()
	}
	return v.screen.draw(width, height)
}

func (v *subflowScreen) refresh() { v.top, v.read = v.source.snapshot(), true }

func (v *screen) tell(mistake string) { v.note = mistake }

func (v *screen) over() bool { return v.left }

// press does what a key asks for.
func (v *screen) press(key string) {
	if v.typing {
		v.typeFilter(key)
		return
	}
	switch key {
	case "q", keyInterrupt:
		v.left = true
	case "/":
		v.typing = true
	case keyEscape:
		v.filter = ""
	case "r":
		v.reverse = !v.reverse
	case keyLeft:
		v.sortBy((v.sort + len(columns) - 1) % len(columns))
	case keyRight:
		v.sortBy((v.sort + 1) % len(columns))
	case keyUp:
		v.first--
	case keyDown:
		v.first++
	case keyPageUp:
		v.first -= v.shown
	case keyPageDown:
		v.first += v.shown
	default:
		v.pressLetter(key)
	}
}

func (v *screen) pressLetter(key string) {
	for i, c := range columns {
		if key == string(c.key) {
			v.sortBy(i)
		}
	}
}

func (v *screen) sortBy(column int) { v.sort, v.reverse, v.first = column, false, 0 }

// typeFilter takes a key of a filter in; it holds at once.
func (v *screen) typeFilter(key string) {
	switch key {
	case keyInterrupt:
		v.left = true
	case keyEnter:
		v.typing = false
	case keyEscape:
		v.typing, v.filter = false, ""
	case keyDelete:
		_, size := utf8.DecodeLastRuneInString(v.filter)
		v.filter = v.filter[:len(v.filter)-size]
	default:
		if utf8.RuneCountInString(key) == 1 {
			v.filter += key
		}
	}
	v.first = 0
}

// matching are the subflows that the filter lets through.
func (v *screen) matching() (matching []Subflow) {
	wanted := strings.ToLower(v.filter)
	for i := range v.top.Subflows {
		s := &v.top.Subflows[i]
		if strings.Contains(strings.ToLower(s.Pod+" "+s.peer()+" "+s.Remote+" "+s.Path+" "+s.Node), wanted) {
			matching = append(matching, *s)
		}
	}
	return matching
}

// draw makes the whole screen; lines that do not fit are not even formatted.
func (v *screen) draw(width, height int) string {
	matching := v.matching()
	sortSubflows(matching, v.sort, v.reverse)
	footer := v.footer()
	visible := matching[v.scroll(len(matching), height-2-len(footer)):]
	visible = visible[:min(len(visible), v.shown)]
	titles := columnTitles()
	titles[v.sort] += map[bool]string{false: "*", true: "^"}[v.reverse]
	rows := [][]string{titles}
	for i := range visible {
		rows = append(rows, cellsOf(&visible[i]))
	}
	return paint(v.header(matching), rows, footer, width, height)
}

// scroll keeps the first line that is shown where there is something, and returns it.
func (v *screen) scroll(total, room int) int {
	v.shown = max(1, room)
	v.first = max(0, min(v.first, total-v.shown))
	return v.first
}

// paint writes over what is there, so that nothing flickers.
func paint(header string, rows [][]string, footer []string, width, height int) string {
	lines := []string{header}
	for line := range strings.Lines(table(rows...)) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	for len(lines) < height-len(footer) {
		lines = append(lines, "")
	}
	lines = append(lines, footer...)
	var b strings.Builder
	b.WriteString(home)
	for i, line := range lines[:min(len(lines), height)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		line = cutTo(line, width)
		if i == 1 { // the titles
			line = reverseOn + line + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(line))) + reverseOff
		}
		b.WriteString(line + clearLine)
	}
	return b.String() + clearBelow
}

func cutTo(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width])
}

func (v *screen) header(matching []Subflow) string {
	if !v.read {
		return "kubectl braid top: measuring …"
	}
	var sent, received uint64
	for i := range matching {
		sent += matching[i].SentBitsPerSecond
		received += matching[i].ReceivedBitsPerSecond
	}
	text := fmt.Sprintf("%d of %d subflows, sent %s, received %s", len(matching), max(v.top.Total, len(matching)), rateText(sent), rateText(received))
	if v.filter != "" && !v.typing {
		text += ", with " + v.filter
	}
	return text
}

// footer has the filter while it is typed, what went wrong, and the keys.
func (v *screen) footer() []string {
	keys := "q quit  / filter  r reverse  ←→ sort"
	for _, c := range columns {
		keys += fmt.Sprintf("  %c %s", c.key, c.name)
	}
	return v.footerOf(v.top.Problems, v.top.NotAsked, keys)
}

func (v *screen) footerOf(problems []Problem, notAsked int, keys string) (lines []string) {
	for _, text := range []string{v.note, notAskedText(notAsked)} {
		if text != "" {
			lines = append(lines, text)
		}
	}
	for i, problem := range problems {
		if i == 3 {
			lines = append(lines, fmt.Sprintf("and %d more", len(problems)-i))
			break
		}
		lines = append(lines, problem.Object+": "+strings.ReplaceAll(problem.Message, "\n", " "))
	}
	if v.typing {
		return append(lines, "/"+v.filter)
	}
	return append(lines, keys)
}
