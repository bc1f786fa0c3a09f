package rcctl

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// The answer about hundreds of nodes fits on a screen. It has a few lines about the nodes that come first, and one line
// for each reason. No line is wider than 80 columns.
func TestPlacingOfManyNodesFitsAScreen(t *testing.T) {
	t.Parallel()
	v := inspect.Placing{
		Name:         "web",
		GroupPlacing: inspect.GroupPlacing{Replicas: 40, Found: 40, Out: scheduler.Reasons{}, Spread: "rack"},
	}
	for i := range 700 {
		n := inspect.PlacingNode{
			Name: fmt.Sprintf("node-%d", i), Rank: i + 1, Group: "rack-7", Pods: 12, Gets: 1, Load: 123,
			Used:     inspect.Usage{Slots: 120, CPU: 12500, Memory: 3 << 29},
			Capacity: inspect.Usage{Slots: 500, CPU: 64000, Memory: 300 << 30},
		}
		if i >= 300 {
			n.Rank, n.Reason = 0, []scheduler.Reason{scheduler.Selector, scheduler.MaxPerNode}[i%2]
			v.Out[n.Reason]++
		}
		v.Nodes = append(v.Nodes, n)
	}
	var out bytes.Buffer
	if err := writePlacing(&out, &v, false); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for _, line := range lines {
		if len(line) > 80 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	for _, want := range []string{
		"280 nodes more would take a pod; -o wide has all.", "400 of 700 nodes take no pod:",
		"200    max_per_node  node-301, node-303, node-305, and 197 more",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if len(lines) > 35 {
		t.Errorf("%d lines:\n%s", len(lines), out.String())
	}
}

func TestAmounts(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		cpuText(0): "0", cpuText(500): "0.5", cpuText(4000): "4", cpuText(1250): "1.25", cpuText(10): "0.01",
		memoryText(0): "0", memoryText(1023): "1023", memoryText(1024): "1Ki", memoryText(1536 << 20): "1.5Gi",
		memoryText(16 << 30): "16Gi",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
