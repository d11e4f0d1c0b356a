// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/build/pages"
	"braid.dev/braid/internal/testutil"
)

// All that README.md and docs/ tell to type is typed here, but for what a mark above its
// fence says why it is not, and what the tutorial's own test types.
func TestWhatPagesTellToTypeWorks(t *testing.T) {
	feature := features.New("pages").
		Setup(removeWorkload).
		Setup(setUpReader).
		Assess("its commands succeed, and show what the pages show", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			r := newReader(ctx, t)
			texts, err := pages.Read(repository)
			require.NoError(t, err)
			send(ctx, t)
			for _, name := range inOrder(texts) {
				t.Run(filepath.Base(name), func(t *testing.T) { r.follow(ctx, t, name, texts[name]) })
			}
			if r.ran < 70 {
				t.Errorf("%d commands were run: look for them otherwise", r.ran)
			}
			return ctx
		}).
		Teardown(tearDownReader).Feature()
	testenv.Test(t, feature)
}

// inOrder: the plugin's page begins, since its first command proposes paths where there are
// none, and that of installation, which ends with the removal, is the last.
func inOrder(texts map[string]string) []string {
	names := slices.Sorted(maps.Keys(texts))
	place := func(name string) int {
		return slices.Index([]string{"kubectl-braid.md", "", "installation.md"}, filepath.Base(name))
	}
	slices.SortStableFunc(names, func(a, b string) int {
		at := map[int]int{0: -1, 2: 1}
		return at[place(a)] - at[place(b)]
	})
	return slices.DeleteFunc(names, func(name string) bool { return filepath.Base(name) == "tutorial.md" })
}

// setUpReader makes the pods and policies that the pages speak of.
func setUpReader(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	mustKubectl(ctx, t, "apply", "--filename", readerManifest(t))
	mustKubectl(ctx, t, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
	mustKubectl(ctx, t, "wait", "--for=condition=Ready", "pod", "--all", "--namespace", "shop", "--timeout=60s")
	return ctx
}

// send has the client send until the test ends, by one connection after another, so that
// those are among them that begin once there are paths.
func send(ctx context.Context, t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(ctx)
	to, ended := serverAddress(ctx, t, "traffic")+":5001", make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			// One that fails is followed by the next; what pages show of them is compared.
			_, _ = kubectl(ctx, "exec", "client", "--container", "traffic", "--", "/traffic", "run", to, "--duration", "20s", "--json")
		}
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
}

func readerManifest(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, "e2e/cluster/testdata/pages.yaml"))
	require.NoError(t, err)
	text := string(content)
	for i, node := range cluster.nodes() {
		text = strings.ReplaceAll(text, fmt.Sprintf("nodeName: node%d\n", i+1), "nodeName: "+node+"\n")
	}
	return writeFile(t, text)
}

// tearDownReader also installs again what the page of installation has removed.
func tearDownReader(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	_, err := kubectl(ctx, "delete", "--ignore-not-found", "--filename", readerManifest(t), "--grace-period=1")
	if err != nil && !strings.Contains(err.Error(), "no matches for kind") { // with the CRDs
		t.Error(err)
	}
	if out, err := run(ctx, helmBin, "status", release, "--namespace", systemNamespace); err != nil {
		t.Logf("installing again: %s", out)
		if err := install(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return ctx
}

// reader types what pages say, in a directory that looks like the repository.
type reader struct {
	directory string
	replacer  *strings.Replacer
	ran       int
	// done are commands of the plugin that need not be typed twice.
	done map[string]bool
}

func newReader(ctx context.Context, t *testing.T) *reader {
	t.Helper()
	directory := t.TempDir()
	entries, err := filepath.Glob(filepath.Join(repository, "[a-z]*"))
	require.NoError(t, err)
	for _, entry := range entries {
		require.NoError(t, os.Symlink(entry, filepath.Join(directory, filepath.Base(entry))))
	}
	require.NoError(t, os.Symlink(filepath.Join(repository, "docs/examples/large.bpf.c"), filepath.Join(directory, "large.bpf.c")))
	require.NoError(t, os.Symlink("large.o", filepath.Join(directory, "stamp.o"))) // what clang makes will do for it
	policy := "apiVersion: braid.dev/v1alpha1\nkind: MPTCPPolicy\nmetadata: {name: web, namespace: default}\nspec: {podSelector: {matchLabels: {app: web}}, paths: {allowed: [blue, grren]}, priority: 5}\n"
	require.NoError(t, os.WriteFile(filepath.Join(directory, "policy.yaml"), []byte(policy), 0o644))
	nodes := cluster.nodes()
	r := &reader{directory: directory, done: map[string]bool{}}
	r.replacer = strings.NewReplacer(
		"PODNAME-OF-THE-AGENT", agentOf(ctx, t, nodes[0]), "mplan NODE", "mplan "+nodes[0], "mnode NODE", "mnode "+nodes[0], "agent NODE", "agent "+nodes[0],
		"exec POD -- cat", "exec client -- busybox cat", "explain POD", "explain client", "top POD", "top client",
		"demo/", "default/", "10.244.1.2", serverAddress(ctx, t, "client"), "10.244.2.2:80", serverAddress(ctx, t, "traffic")+":5001",
		"10.244.2.7", serverAddress(ctx, t, "traffic"), "/tmp/", directory+"/",
		"node1", nodes[0], "node2", nodes[1], "node3", nodes[2],
	)
	r.provide(ctx, t)
	return r
}

func agentOf(ctx context.Context, t *testing.T, node string) string {
	t.Helper()
	return mustKubectl(ctx, t, "get", "pod", "--namespace", systemNamespace, "--selector", "app.kubernetes.io/name=braid-agent",
		"--field-selector", "spec.nodeName="+node, "--output", "jsonpath={.items[0].metadata.name}")
}

// provide makes programs of what pages name: those of the images, and those that a user types
// on a node.
func (r *reader) provide(ctx context.Context, t *testing.T) {
	t.Helper()
	node := cluster.nodes()[0]
	found := func(program string) string { // not one of those below
		path, err := exec.LookPath(program)
		require.NoError(t, err)
		return " " + path + ` "$@"`
	}
	inside := cluster.insideShell(t, node)
	inAgent := func(program string) string {
		return fmt.Sprintf(`%s exec --namespace %s "$(%s get pod --namespace %s --selector app.kubernetes.io/name=braid-agent --field-selector spec.nodeName=%s --output name)" -- /%s "$@"`,
			kubectlBin, systemNamespace, kubectlBin, systemNamespace, node, program)
	}
	clang, err := run(ctx, "bash", "-c", "command -v clang-19 || command -v clang")
	require.NoError(t, err)
	for name, command := range map[string]string{
		"braid-agent": inAgent("braid-agent"), "braid-trace": inAgent("braid-trace"),
		"ip": cluster.shell(node) + found("ip"), "ls": inside + found("ls"), "curl": inside + found("curl"), "clang": strings.TrimSpace(clang) + ` "$@"`,
		"kubectl": kubectlBin + ` "$@"`, "kubectl-braid": pluginBin + ` "$@"`,
		// The images are on the nodes alone.
		"helm": helmBin + ` "$@" $(case $1 in upgrade) echo --set image.pullPolicy=Never --wait --timeout=2m; esac)`,
		// What does not end by itself is looked at for a while.
		"watched": `timeout --signal=INT --kill-after=20 5 "$@" || [[ $? == 124 ]]`,
	} {
		script := "#!/bin/bash\n" + command + "\n"
		require.NoError(t, os.MkdirAll(filepath.Join(r.directory, ".bin"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(r.directory, ".bin", name), []byte(script), 0o755))
	}
}

// watched are the commands that go on until they are stopped.
var watched = regexp.MustCompile(`^(kubectl braid (ui|events --watch)|braid-agent events --follow|curl .*follow=true)`)

// mayFail are the commands that fail to say something, and what they say then.
var mayFail = map[string]string{
	"kubectl braid status":     `(?m)^Problems:|^Traffic that is not spread:`,
	"kubectl braid preview":    `there is no path`,
	"ls /sys/fs/bpf/braid":     `No such file`,
	"ip rule | grep":           `^$`,
	"ip route show table 2845": `^$|does not exist`,
	"ip -o link | grep":        `^$`,
}

// follow types the commands of a page in one shell.
func (r *reader) follow(ctx context.Context, t *testing.T, name, text string) {
	t.Helper()
	commands := r.commands(t, name, text)
	if len(commands) == 0 {
		return
	}
	var script strings.Builder
	script.WriteString(r.prologue())
	for i, c := range commands {
		typed := r.replacer.Replace(c.Text)
		if watched.MatchString(typed) {
			typed = "watched " + typed
		}
		fmt.Fprintf(&script, "printf '\\x1e%d\\n'\n%s\nprintf '\\x1f%%s' $?\n", i, typed)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "bash", "-c", script.String()).Output()
	said := strings.Split(string(out), "\x1e")[1:]
	if err != nil && len(said) < len(commands) || len(said) != len(commands) {
		t.Fatalf("%d of %d commands were run: %v\n%s\nthe commands were:\n%s", len(said), len(commands), err, out, script.String())
	}
	for i, c := range commands {
		_, answer, _ := strings.Cut(said[i], "\n")
		answer, status, _ := strings.Cut(answer, "\x1f")
		t.Logf("$ %s\n%s", c.Text, shorten(answer))
		err := r.judge(c, answer, status)
		if err != nil && c.Shown != "" {
			answer, err = r.awaitLikeness(ctx, c)
		}
		if err != nil {
			// At the end, where it is found however long the log is.
			defer t.Errorf("%s: %v\n%s", c.Text, err, answer)
		}
	}
}

// awaitLikeness types a command again that only shows something: agents look at traffic now
// and then, and pages show what they have seen. It returns what the command said last.
func (r *reader) awaitLikeness(ctx context.Context, c pages.Command) (answer string, err error) {
	_, err = testutil.Until(time.Minute, func() error {
		command := exec.CommandContext(ctx, "bash", "-c", r.prologue()+r.replacer.Replace(c.Text))
		said, err := command.Output()
		answer = string(said)
		status := "0"
		if err != nil {
			status = strconv.Itoa(command.ProcessState.ExitCode())
		}
		return r.judge(c, answer, status)
	})
	return answer, err
}

// prologue is how a shell begins that types what pages say.
func (r *reader) prologue() string {
	return fmt.Sprintf("set -u -o pipefail\ncd %s\nexport PATH=%s/.bin:$PATH\nexec 2>&1 </dev/null\n", r.directory, r.directory)
}

func shorten(text string) string {
	const most = 300
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// commands are those to type; what the plugin tells is asked for once, as it changes nothing.
func (r *reader) commands(t *testing.T, name, text string) (all []pages.Command) {
	t.Helper()
	for _, b := range pages.Blocks(name, text) {
		if !b.HasCommands() {
			continue
		}
		found, err := b.Commands()
		require.NoError(t, err)
		for _, c := range found {
			again := c.Shown == "" && strings.HasPrefix(c.Text, "kubectl braid ") && r.done[c.Text]
			r.done[c.Text] = true
			if c.NotRun == "" && !again {
				all = append(all, c)
				r.ran++
			}
		}
	}
	return all
}

// judge says what is wrong with what a command said.
func (r *reader) judge(c pages.Command, answer, status string) error {
	if code, err := strconv.Atoi(status); err != nil || code != 0 {
		allowed := ""
		for beginning, says := range mayFail {
			if strings.HasPrefix(c.Text, beginning) {
				allowed = says
			}
		}
		if err != nil || allowed == "" || !regexp.MustCompile(allowed).MatchString(strings.TrimSpace(answer)) {
			return fmt.Errorf("it ended with %s", status)
		}
	}
	if watched.MatchString(c.Text) && strings.TrimSpace(answer) == "" {
		return errors.New("it said nothing before it was stopped")
	}
	if strings.HasPrefix(c.Comment, "nothing") && strings.TrimSpace(answer) != "" && !strings.Contains(answer, "No such") && !strings.Contains(answer, "does not exist") {
		return errors.New("the page says that it shows nothing")
	}
	for line := range strings.Lines(r.replacer.Replace(c.Shown)) {
		if like := likeness(line); like != nil && !like.MatchString(answer) {
			return fmt.Errorf("nothing in the answer is like %q of the page (%s)", strings.TrimSpace(line), like)
		}
	}
	return nil
}

var (
	columns = regexp.MustCompile(`^ *[A-Z]{2,}[A-Z ….]*$`)
	numbers = regexp.MustCompile(`0x[0-9a-f]+|[0-9]+`)
)

// likeness is what a line that a page shows has in common with that of another cluster: all
// titles of columns, and else the first word, but for its numbers.
func likeness(line string) *regexp.Regexp {
	fields := strings.Fields(line)
	if len(fields) == 0 || strings.HasPrefix(fields[0], "…") || fields[0] == "..." {
		return nil
	}
	if columns.MatchString(strings.TrimRight(line, "\n")) {
		for i, field := range fields {
			fields[i] = regexp.QuoteMeta(field)
			if field == "…" {
				fields[i] = ".*"
			}
		}
		return regexp.MustCompile(strings.Join(fields, `\s+`))
	}
	word := fields[0]
	if strings.ContainsAny(word[:1], "{[") { // an object, of whose fields the first
		word, _, _ = strings.Cut(word, ":")
	}
	return regexp.MustCompile(numbers.ReplaceAllStringFunc(regexp.QuoteMeta(word), func(number string) string {
		if strings.HasPrefix(number, "0x") {
			return "0x[0-9a-f]+"
		}
		return `\d+`
	}))
}

func TestWhatAPageShowsIsComparedWithAnAnswer(t *testing.T) {
	answer := "NAME    PODS   STATUS\nspread  3      Programmed\n  0x1f 10.0.0.9:80\n"
	for line, is := range map[string]bool{
		"NAME PODS STATUS": true, "NAME … STATUS": true, "NAME STATUS": false, "spread  2  Pending": true, "other 3": false,
		"0xabcdef  blue": true, "10.244.1.2:5001 -> b": true, "10.244.1.2.3": false,
	} {
		require.Equal(t, is, likeness(line).MatchString(answer), line)
	}
	r := &reader{replacer: strings.NewReplacer()}
	require.Error(t, r.judge(pages.Command{Text: "kubectl get mpol"}, "", "1"))
	require.NoError(t, r.judge(pages.Command{Text: "kubectl braid status"}, "Problems:\n", "1"))
	require.Error(t, r.judge(pages.Command{Text: "kubectl braid status"}, "no server\n", "1"))
	require.Error(t, r.judge(pages.Command{Text: "kubectl braid ui"}, "", "0"))
	require.Error(t, r.judge(pages.Command{Text: "ip rule", Comment: "nothing"}, "1: detour\n", "0"))
}
