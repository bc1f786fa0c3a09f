package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

func TestMain(m *testing.M) {
	if os.Getenv(insideVar) != "" {
		os.Exit(start(os.Args[1:])) // this process is a run that a test below started
	}
	os.Exit(consultest.Main(m))
}

// A short run with a fixed seed. `make chaos` runs for longer, with all faults and rollouts.
func TestShortRun(t *testing.T) {
	args := []string{"-seed", "162", "-time", "50s", "-pods", "100", "-rollouts=false", "-v"}
	if code := start(append(args, "-faults",
		"leader-kill,snapshot-restore,host-loss,wipe,node-garbage")); code != exitGood {
		t.Fatalf("exit code %d; the report above says why", code)
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-faults", "earthquake"},
		{"-time", "1s"},
		{"-farm", "/nowhere/farm"},
		{"-time", "never"},
		{"-pods", "301"},
		{"-pods", "0"},
		{"-expect", "luck"},
	} {
		if _, err := parse(args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

func TestFaultsAreDocumented(t *testing.T) {
	t.Parallel()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "testing.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range faultNames() {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/testing.md does not mention %s", name)
		}
	}
}

func TestDrawKeepsToOneTargetAtATime(t *testing.T) {
	t.Parallel()
	rng := newRand(9, 1)
	for range 200 {
		left := append([]fault(nil), faults...)
		rng.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		n := 0
		for len(left) > 0 {
			var now []fault
			now, left = draw(left, rng)
			n += len(now)
			if len(now) == 2 && (now[0].hits == now[1].hits || now[0].hits == hitsStore || now[1].hits == hitsStore) {
				t.Fatalf("%s and %s at once", now[0].name, now[1].name)
			}
		}
		if n != len(faults) {
			t.Fatalf("%d faults of %d were drawn", n, len(faults))
		}
	}
	for range 100 {
		if d := upTo(rng, time.Second); d < 0 || d >= time.Second {
			t.Fatal(d)
		}
	}
}
