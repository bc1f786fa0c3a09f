package preparer_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// The node's variables are expanded for the program, its hooks and its checks, but not escaped and unknown ones.
func TestVariablesAreExpanded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.pod(`echo "$@" > "$POD_HOME/args"; echo "$OWN" >> "$POD_HOME/args"; exec sleep 1000`, "1")
	m.Ports = []manifest.Port{{Name: "http-main", Port: httpPort}}
	m.Volumes = []manifest.Volume{{Name: "data"}}
	l := &m.Launchables[0]
	l.Args = []string{
		"${PORT_HTTP_MAIN}", "${RC_ID}/${POD_INDEX}", "$${PORT_HTTP_MAIN}", "${VERSION}", "${VOLUME_DATA}",
	}
	l.Env["OWN"] = "${POD_ROLE}:${PORT_HTTP_MAIN}"
	bin := b.artifacts.dir + "/" + l.Artifact.SHA256 + "/bin/"
	for name, script := range map[string]string{"hook": `echo "$1" > "$POD_HOME/hook"`, "check": `[ "$1" = 18080 ]`} {
		if err := os.WriteFile(bin+name, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.Hooks = &manifest.Hooks{
		BeforeLaunch: &manifest.Hook{Path: "bin/hook", Args: []string{"${PORT_HTTP_MAIN}"}, Required: true},
	}
	m.Health = &manifest.Health{Script: &manifest.ScriptCheck{Path: "bin/check", Args: []string{"${PORT_HTTP_MAIN}"}}}
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	want := "18080 rc1/0 ${PORT_HTTP_MAIN} ${VERSION} "
	b.eventually(func() error {
		data, err := os.ReadFile(b.homeFile(0, "args"))
		args := string(data)
		if err == nil && (!strings.HasPrefix(args, want+"/") || !strings.HasSuffix(args, "/data\nmain:18080\n")) {
			err = fmt.Errorf("the program got %q, want %q and the volume, then main:18080", args, want)
		}
		return err
	})
	if args := b.text(b.homeFile(0, "hook")); args != "18080\n" {
		t.Errorf("the hook got %q", args)
	}

	web := b.server("2")
	web.Ports[0].Port++
	web.Health.HTTP.Path = "/${RC_ID}"
	two := b.upload(web)
	b.write(intent(1, two, pod.Running, 10))
	b.awaitReady(1, two, 10)
	checks, err := b.client.Services.LocalServices(t.Context(), "rcfarm_index", "1")
	if err != nil {
		t.Fatal(err)
	}
	for id, check := range checks {
		if strings.HasPrefix(id, "rcfarm-pod-"+b.cfg.Node.Name) && !strings.Contains(check.Output, "/rc1: 200") {
			t.Errorf("the check has the output %q, want a request for /rc1", check.Output)
		}
	}
}
