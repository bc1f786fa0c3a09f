package rcctl

import (
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestInterspersed(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "",
		"rc list":                  "rc list",
		"rc get web -o json":       "rc get -o json -- web",
		"rc get web --output=json": "rc get --output=json -- web",
		"rc scale web --role a 5":  "rc scale --role a -- web 5",
		"rc scale web -1":          "rc scale -- web -1",
		"rc list --prefix x/":      "--prefix x/ rc list",
		"--token-file t rc --prefix x/ list -o y": "--token-file t --prefix x/ rc list -o y",
		"apply -f -":          "apply -f -",
		"apply -f - --wait x": "apply -f - --wait -- x",
		"rc get -- -o":        "rc get -- -o",
		"rc get web --help":   "rc get --help",
		"help rc scale":       "rc scale --help",
		"help":                "--help",
		"rc help":             "rc -- help",
		"rc get help":         "rc get -- help",
		"rc get list":         "rc get -- list",
		"nope rc list":        "-- nope rc list",
	} {
		app := newApp(&stdio{out: io.Discard, err: io.Discard})
		got, err := interspersed(app, append([]string{"rcctl"}, strings.Fields(in)...))
		if err != nil || strings.Join(got[1:], " ") != want {
			t.Errorf("%q: got %q, want %q, %v", in, got, want, err)
		}
	}
	for in, want := range map[string]string{
		"rc list -o json -o yaml":       "rcctl rc list: --output: given twice; allowed: once",
		"rc list -o json --output=yaml": "rcctl rc list: --output: given twice; allowed: once",
		"rc list -o":                    "rcctl rc list: -o: missing value",
		"rc get --nope web": "rcctl rc get: --nope: unknown flag; allowed: --consul-addr, --node-ca, " +
			"--node-token-dir, --output, --prefix or --token-file",
		"--nope rc get": "rcctl: --nope: unknown flag; allowed: --consul-addr, --node-ca, --node-token-dir, --prefix " +
			"or --token-file",
	} {
		app := newApp(&stdio{out: io.Discard, err: io.Discard})
		if _, err := interspersed(app, append([]string{"rcctl"}, strings.Fields(in)...)); err == nil ||
			err.Error() != want {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// A command line means the same wherever its flags stand.
func TestInterspersedAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Arguments keep their order; flags may stand anywhere between them.
		args := []string{"web", "5"}
		for _, flag := range rapid.Permutation([]string{"--role=main", "--wait", "--timeout=1s", "--prefix=x/"}).Draw(t,
			"flags") {
			at := rapid.IntRange(0, len(args)).Draw(t, "at")
			args = slices.Insert(args, at, flag)
		}
		app := newApp(&stdio{out: io.Discard, err: io.Discard})
		got, err := interspersed(app, append([]string{"rcctl", "rc", "scale"}, args...))
		if err != nil || !slices.Equal(got[:4], []string{"rcctl", "--prefix=x/", "rc", "scale"}) ||
			!slices.Equal(got[len(got)-3:], []string{"--", "web", "5"}) || len(got) != 10 {
			t.Fatalf("%q: %q, %v", args, got, err)
		}
	})
}
