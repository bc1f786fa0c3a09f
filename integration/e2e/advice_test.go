package e2e

import (
	"fmt"
	"regexp"
	"strings"
)

// adviceWorks: if no node can take a new version, rcctl refuses the version with every strategy, prints the obstacle,
// and writes nothing. If a strategy helps, rcctl prints it, and a deployment with that strategy works.
func adviceWorks(e *env) {
	e.site(2, 1)
	const port = 8080
	w := web{replicas: 2, version: "1"}
	e.deployed(w)
	other := e.hello(2, nil)
	other.Name, other.Port = "other", port
	e.applied(other)

	taken := w
	taken.version, taken.port = "2", port
	e.noStrategyHelps(e.document(taken), "port 8080 is held by other on n1, n2",
		"no strategy helps: free the port, or use another one")
	nowhere := strings.Replace(e.document(w), `node_selector: ""`, `node_selector: "zone=none"`, 1)
	e.noStrategyHelps(nowhere, `the node_selector "zone=none" matches none of 2 nodes`,
		"no strategy helps: change it, or label nodes")

	other.Replicas = 0
	e.applied(other)
	e.deployed(taken)
	next := taken
	next.version = "3"
	out, err := e.tryRcctl(e.document(next), "plan", "-f", "-", "--strategy", "availability")
	ways := regexp.MustCompile(`--strategy [a-z-]+`).FindAllString(out, -1)
	if err == nil || len(ways) != 2 {
		e.t.Fatalf("plan of a version that has no room beside the old one: %v\n%s", err, out)
	}
	for i, way := range ways {
		next.version = fmt.Sprint(3 + i)
		e.deployed(next, strings.Fields(way)...)
	}
}

func (e *env) noStrategyHelps(document string, says ...string) {
	e.t.Helper()
	history, before := e.rcctl("", "history", "web", "-o", "json"), e.processes()
	for _, strategy := range []string{"", "availability", "resourceutil", "in-place", "canary", "blue-green"} {
		flags := []string{"-f", "-"}
		if strategy != "" {
			flags = append(flags, "--strategy", strategy)
		}
		for _, command := range [][]string{{"plan"}, {"deploy", "--yes"}} {
			out, err := e.tryRcctl(document, append(command, flags...)...)
			for _, text := range append([]string{"exit status 4", "no-room"}, says...) {
				if err == nil || !strings.Contains(err.Error(), text) {
					e.t.Errorf("rcctl %s with strategy %q does not say %q: %v\n%s",
						command[0], strategy, text, err, out)
				}
			}
		}
	}
	if now := e.rcctl("", "history", "web", "-o", "json"); now != history {
		e.t.Errorf("the history was\n%s\nand is\n%s", history, now)
	}
	if r := e.rollout(); r != nil {
		e.t.Errorf("a rollout that was refused has begun: %+v", r)
	}
	e.sameProcesses(before, "refused")
}
