// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/plugin"
)

func TestEveryBlockOfAPageSaysWhatItIs(t *testing.T) {
	seen, marks := 0, 0
	for _, b := range blocks(allPages(t)) {
		marks += len(b.Marks)
		if _, err := b.Commands(); b.HasCommands() && err != nil {
			t.Error(err)
		}
		if len(b.Marks) > 0 && !b.HasCommands() {
			t.Errorf("%s: nothing there is to be run: the mark does not belong there", b)
		}
		seen++
		if !kinds[b.Kind] {
			t.Errorf("%s: the fence says %q: sh for commands, console for commands with their output, text for output, yaml, json or c for files", b, b.Kind)
		}
		if b.Kind == "console" && b.Script() == "" {
			t.Errorf("%s: no line begins with \"$ \": text is for output alone", b)
		}
	}
	if seen < 100 {
		t.Errorf("the pages have %d blocks: look for them otherwise", seen)
	}
	written := 0
	for _, text := range allPages(t) {
		written += len(regexp.MustCompile(`(?m)^ *<!-- not run`).FindAllString(text, -1))
	}
	if written != marks {
		t.Errorf("%d marks say what is not run, and %d of them stand above a fence as <!-- not run: WHY --> or <!-- not run (BEGINNING OF A COMMAND; ANOTHER): WHY -->", written, marks)
	}
}

// What a page tells to type exists: programs, commands, flags, arguments, resources,
// values of the chart, targets, packages and tests.
func TestCommandsOfPages(t *testing.T) {
	c := newChecker(t)
	t.Run("all exist", c.allExist)
	t.Run("that do not exist are found", c.othersAreFound)
}

func (c *checker) allExist(t *testing.T) {
	all, seen := allPages(t), map[string]int{}
	for _, page := range slices.Sorted(maps.Keys(all)) {
		s := &shell{variables: map[string]string{}, functions: map[string]bool{}}
		for _, b := range blocks(map[string]string{page: all[page]}) {
			if !b.HasCommands() {
				continue
			}
			commands, err := s.commands(b)
			if err != nil {
				t.Errorf("%s: %v", b, err)
			}
			for _, words := range commands {
				seen[filepath.Base(words[0])]++
				if err := c.check(words, s.functions); err != nil {
					t.Errorf("%s: %s: %v", b, strings.Join(words, " "), err)
				}
			}
		}
	}
	for program, least := range map[string]int{"kubectl": 70, "helm": 8, "make": 25, "go": 6, "braid-agent": 6} {
		if seen[program] < least {
			t.Errorf("the pages have %d commands of %s: look for them otherwise", seen[program], program)
		}
	}
}

func (c *checker) othersAreFound(t *testing.T) {
	for command, want := range map[string]string{
		"kubectl braid statsu":                           "unknown command",
		"kubectl braid status --wiat=2m":                 "unknown flag",
		"kubectl braid uninstall extra":                  "unknown command",
		"kubectl braid explain":                          "arg(s)",
		"kubectl get mpaht":                              "no resource",
		"kubectl get mpath,mpols -A":                     "no resource",
		"kubectl wait --fro=condition=Ready mnode --all": "no flag",
		"kubectl gett mpath":                             "gett",
		"kubectl exec pod -- braid-agent sub":            "no command",
		"kubectl create configmaps a":                    "no command",
		"kubectl create configmap a --from-dir=b":        "no flag",
		"braid-agent rates --evry 2s":                    "no flag",
		"helm install braid charts/braid --set a.b=1":    "additional properties",
		"helm upgrade braid charts/braids":               "no chart",
		"helm upgrade braid charts/braid --reuse":        "no flag",
		"make demos":                              "no target",
		"make demo ARGS=--kept":                   "no flag",
		"make bench ARGS=--only=^ratee$":          "no experiment",
		"go test ./agent/guard -run ^TestNobody$": "no test",
		"go test ./agent/guards":                  "no such file",
		"frobnicate":                              "no program",
	} {
		if err := c.check(strings.Fields(command), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", command, err, want)
		}
	}
}

// checker knows what there is.
type checker struct {
	// programs are those that say their flags by themselves.
	programs  map[string]string
	resources map[string]bool
	helps     map[string]help
}

type help struct {
	text string
	err  error
}

func newChecker(t *testing.T) *checker {
	t.Helper()
	c := &checker{programs: map[string]string{}, helps: map[string]help{}, resources: map[string]bool{}}
	directory := t.TempDir()
	run(t, nil, "go", "build", "-ldflags=-s -w", "-o", directory, "./cmd/braid-agent", "./cmd/braid-trace", "./hack/bench", "./hack/demo", "./hack/kernels", "./hack/cluster")
	for _, name := range []string{"braid-agent", "braid-trace", "bench", "demo", "kernels", "cluster"} {
		c.programs[name] = filepath.Join(directory, name)
	}
	for name, script := range map[string]string{"helm": "../hack/helm/build.sh", "kubectl": "../hack/kube/build.sh"} {
		out, err := exec.Command(script).Output()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		c.programs[name] = strings.TrimSpace(string(out))
	}
	c.programs["kubectl"] = filepath.Join(c.programs["kubectl"], "kubectl")
	for _, name := range strings.Fields("pod pods node nodes service services namespace namespaces configmap crd deployment events") {
		c.resources[name] = true
	}
	for _, name := range glob(t, "../config/crd/braid.dev_*.yaml") {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal([]byte(read(t, name)), &crd); err != nil {
			t.Fatal(err)
		}
		for _, name := range append(crd.Spec.Names.ShortNames, crd.Spec.Names.Plural, crd.Spec.Names.Singular) {
			c.resources[name] = true
		}
	}
	return c
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v, %v", pattern, names, err)
	}
	return names
}

// named are programs that users have, or that hack/deps.sh or the page itself has them
// install: what their arguments do is theirs.
var named = strings.Fields(`awk bpftool busybox cat clang cosign curl export echo grep head install ip jq kill ln ls mptcpize
	nft nginx paste qemu-system-x86_64 read skopeo sha256sum sleep tar wait apt-get until true`)

// check says why a command cannot work.
func (c *checker) check(words []string, functions map[string]bool) error {
	program, arguments := words[0], words[1:]
	switch name := filepath.Base(program); {
	case functions[program], program == unknown, slices.Contains(named, program):
		return nil
	case program == "nsenter":
		return c.check(slices.DeleteFunc(slices.Clone(arguments), func(word string) bool { return strings.HasPrefix(word, "--") }), functions)
	case program == "kubectl":
		return c.kubectl(arguments, functions)
	case program == "helm":
		return c.helm(arguments)
	case program == "make":
		return c.make(arguments)
	case program == "go":
		return c.goTool(arguments)
	case program == "ss", program == "hack/helm/build.sh":
		return nil
	case name == "braid-agent", name == "braid-trace":
		return c.flags(name, arguments)
	default:
		return fmt.Errorf("no program that is known here")
	}
}

// flags checks a command of a program and its flags by its help.
func (c *checker) flags(program string, arguments []string) error {
	commands := commandsOf(arguments)
	if slices.Contains(commands, unknown) { // the arguments of a function
		return nil
	}
	said := c.help(program, commands)
	if said.err != nil {
		return said.err
	}
	for _, word := range arguments {
		if name, _, _ := strings.Cut(word, "="); isFlag(name) && !hasFlag(said.text, name) {
			return fmt.Errorf("%s %s has no flag %s", program, strings.Join(commands, " "), name)
		}
	}
	return nil
}

// commandsOf are the words that say which command of a program it is.
func commandsOf(arguments []string) []string {
	depth := 1
	if len(arguments) > 0 && (arguments[0] == "create" || arguments[0] == "rollout") {
		depth = 2
	}
	for i, word := range arguments[:min(depth, len(arguments))] {
		if strings.HasPrefix(word, "-") {
			return arguments[:i]
		}
	}
	return arguments[:min(depth, len(arguments))]
}

func isFlag(word string) bool { return len(word) > 1 && word[0] == '-' && word != "--" }

func hasFlag(help, name string) bool {
	return regexp.MustCompile(`(?m)(^|[\s,])-?` + regexp.QuoteMeta(name) + `($|[\s,=])`).MatchString(help)
}

// help is what a program says of its command, together with what it says of flags that
// all of its commands have.
func (c *checker) help(program string, commands []string) help {
	key := program + " " + strings.Join(commands, " ")
	if known, ok := c.helps[key]; ok {
		return known
	}
	out, err := exec.Command(c.programs[program], append(slices.Clone(commands), "--help")...).CombinedOutput()
	said := help{text: string(out)}
	switch {
	case err != nil:
		said.err = fmt.Errorf("%s --help: %w: %s", key, err, out)
	case len(commands) > 0 && !regexp.MustCompile(`Usage:\s+`+regexp.QuoteMeta(key)+`(\s|$)`).MatchString(said.text):
		said.err = fmt.Errorf("there is no command %s", key)
	case program == "kubectl":
		options, err := exec.Command(c.programs[program], "options").Output()
		said.text, said.err = said.text+string(options), err
	}
	c.helps[key] = said
	return said
}

func (c *checker) kubectl(arguments []string, functions map[string]bool) error {
	if arguments, inner, ok := cut(arguments, "--"); ok {
		if err := c.kubectl(arguments, functions); err != nil {
			return err
		}
		return c.check(inner, functions)
	}
	// Flags before the command are those that all commands have.
	verb := slices.IndexFunc(arguments, func(word string) bool { return !strings.HasPrefix(word, "-") && word != "braid-system" })
	if verb < 0 {
		return fmt.Errorf("there is no command")
	}
	switch command := arguments[verb]; command {
	case "braid":
		return checkPlugin(arguments[verb+1:])
	case "krew":
		return nil // build/release_test.go runs it
	default:
		if err := c.flags("kubectl", slices.Concat(arguments[verb:], arguments[:verb])); err != nil {
			return err
		}
		return c.resource(command, arguments[verb+1:])
	}
}

// cut divides words where a separator is.
func cut(words []string, separator string) (before, after []string, found bool) {
	at := slices.Index(words, separator)
	if at < 0 {
		return words, nil, false
	}
	return words[:at], words[at+1:], true
}

// ofResources are kubectl's commands whose first argument names resources, as TYPE,TYPE or
// TYPE/NAME.
var ofResources = strings.Fields("get delete wait describe annotate label explain")

func (c *checker) resource(command string, arguments []string) error {
	if !slices.Contains(ofResources, command) {
		return nil
	}
	at := slices.IndexFunc(arguments, func(word string) bool { return !strings.HasPrefix(word, "-") })
	if at < 0 {
		return fmt.Errorf("it names no resource")
	}
	kinds, _, _ := strings.Cut(arguments[at], "/")
	if command == "explain" {
		kinds, _, _ = strings.Cut(kinds, ".")
	}
	for kind := range strings.SplitSeq(kinds, ",") {
		if !c.resources[kind] {
			return fmt.Errorf("there is no resource %s", kind)
		}
	}
	return nil
}

// checkPlugin parses a command as the plugin does, and runs nothing.
func checkPlugin(arguments []string) error {
	root := plugin.Command(io.Discard, "")
	root.InitDefaultCompletionCmd()
	command, rest, err := root.Find(arguments)
	if err != nil {
		return err
	}
	command.InitDefaultHelpFlag()
	if err := command.ParseFlags(rest); err != nil {
		return err
	}
	if help, _ := command.Flags().GetBool("help"); help {
		return nil
	}
	if command == root {
		return fmt.Errorf("unknown command: it names none")
	}
	if err := command.ValidateArgs(command.Flags().Args()); err != nil {
		return err
	}
	return command.ValidateRequiredFlags()
}

// values are the flags that say what the chart is rendered with.
func values(arguments []string) (kept []string, err error) {
	for i, word := range arguments {
		name, value, joined := strings.Cut(word, "=")
		if name != "--set" && name != "--values" {
			continue
		}
		if !joined || name == "--set" && !strings.Contains(word, "--set=") {
			if i+1 == len(arguments) {
				return nil, fmt.Errorf("%s has no value", name)
			}
			value = arguments[i+1]
		}
		if name == "--set" {
			kept = append(kept, "--set", value)
		} else if !strings.HasPrefix(value, "_out/images/") { // what make images makes
			return nil, fmt.Errorf("nothing makes %s", value)
		}
	}
	return kept, nil
}

func (c *checker) helm(arguments []string) error {
	if err := c.flags("helm", arguments); err != nil {
		return err
	}
	if arguments[0] != "install" && arguments[0] != "upgrade" {
		return nil
	}
	if !slices.Contains(arguments, "charts/braid") {
		return fmt.Errorf("it names no chart that is there")
	}
	set, err := values(arguments)
	if err != nil {
		return err
	}
	render := append([]string{"template", "braid", "../charts/braid", "--namespace", "braid-system", "--api-versions", "monitoring.coreos.com/v1"}, set...)
	if out, err := exec.Command(c.programs["helm"], render...).CombinedOutput(); err != nil {
		return fmt.Errorf("it does not render: %w: %s", err, out)
	}
	return nil
}

// ofTargets are the programs that targets hand ARGS to.
var ofTargets = map[string]string{"demo": "demo", "bench": "bench", "test-kernels": "kernels"}

func (c *checker) make(arguments []string) error {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		return err
	}
	target := arguments[0]
	if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(target) + `:`).Match(makefile) {
		return fmt.Errorf("there is no target %s", target)
	}
	for _, word := range arguments[1:] {
		given, ok := strings.CutPrefix(word, "ARGS=")
		if !ok || ofTargets[target] == "" {
			continue
		}
		if err := c.given(ofTargets[target], fieldsOf(given)); err != nil {
			return err
		}
	}
	return nil
}

// fieldsOf divides as xargs does.
func fieldsOf(text string) (words []string) {
	for _, match := range regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`).FindAllString(text, -1) {
		words = append(words, strings.Trim(match, `'"`))
	}
	return words
}

// given checks what ARGS hands to a program, and what the bench is to measure.
func (c *checker) given(program string, arguments []string) error {
	if err := c.flags(program, arguments); err != nil {
		return err
	}
	if program != "bench" {
		return nil
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	only := flags.String("only", "", "")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	list, err := exec.Command(c.programs["bench"], "--list").Output()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(list)) {
		if name, _, _ := strings.Cut(line, " "); chosen.MatchString(name) {
			return nil
		}
	}
	return fmt.Errorf("there is no experiment %s", *only)
}

// goTool checks packages, and that -run and -bench match something in them.
func (c *checker) goTool(arguments []string) error {
	var directory string
	for _, word := range arguments[1:] {
		if strings.HasPrefix(word, "./") {
			directory = filepath.Join("..", word)
			break
		}
	}
	if _, err := os.Stat(directory); err != nil {
		return err
	}
	if arguments[0] == "run" {
		_, given, _ := cut(arguments, "./"+strings.TrimPrefix(directory, "../"))
		return c.flags(filepath.Base(directory), given)
	}
	for flag, kind := range map[string]string{"-run": "Test", "-bench": "Benchmark"} {
		at := slices.Index(arguments, flag)
		if at < 0 || arguments[at+1] == "XXX" { // no test, by custom
			continue
		}
		if err := matches(directory, kind, arguments[at+1]); err != nil {
			return err
		}
	}
	return nil
}

// matches looks for a test by the first part of what -run or -bench say.
func matches(directory, kind, pattern string) error {
	pattern, _, _ = strings.Cut(pattern, "/")
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(directory, "*_test.go"))
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, found := range regexp.MustCompile(`(?m)^func (`+kind+`\w+)\(`).FindAllSubmatch(text, -1) {
			if wanted.Match(found[1]) {
				return nil
			}
		}
	}
	return fmt.Errorf("%s has no test that matches %s", directory, pattern)
}
