package container_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/container"
)

// The configuration of an image has at most 4 MiB, which can be a million wrong texts.
func TestMistakesOfAHostileImageAreFew(t *testing.T) {
	for name, change := range map[string]func(*container.Input, []string){
		"Env":        func(in *container.Input, texts []string) { in.Image.Config.Env = texts },
		"Entrypoint": func(in *container.Input, texts []string) { in.Image.Config.Entrypoint = texts },
		"Cmd":        func(in *container.Input, texts []string) { in.Image.Config.Cmd = texts },
		"Volumes": func(in *container.Input, texts []string) {
			in.Ask.ReadOnlyRoot = true
			in.Image.Config.Volumes = map[string]struct{}{}
			for i := range texts[:100_000] {
				in.Image.Config.Volumes[fmt.Sprint("/", i)] = struct{}{}
			}
		},
	} {
		in := input()
		texts := make([]string, 1_000_000)
		for i := range texts {
			texts[i] = "\x00"
		}
		change(&in, texts)
		withoutLinks(&in)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := container.Build(in)
		if err == nil {
			t.Fatalf("%s: no mistake", name)
		}
		text := err.Error()
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; len(text) > 4096 || took > 1<<20 {
			t.Errorf("%s: an error of %d bytes, and %d MiB of memory", name, len(text), took>>20)
		}
	}
}
