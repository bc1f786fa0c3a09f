package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

func TestHooksLogIsRotated(t *testing.T) {
	t.Parallel()
	n := &Node{cfg: Config{Host: Host{Dir: t.TempDir(), LogBytes: 10, LogKeep: 2}}}
	v := &Version{n: n, ID: pod.Identity{RCID: "rc", Role: "main"}}
	for i := range 5 {
		f, err := v.openHooksLog()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, strings.Repeat(fmt.Sprint(i), 11))
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(n.Logs(v.ID))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(n.Logs(v.ID), entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entry.Name()+"="+string(data[:1]))
	}
	if want := "[_hooks.log=4 _hooks.log.1=3 _hooks.log.2=2]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
