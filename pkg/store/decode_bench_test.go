package store

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// A farm that takes over controllers decodes tens of thousands of these. The difference between checked and unchecked
// is the cost of the Check.
func BenchmarkDecode(b *testing.B) {
	keys, err := NewKeys("x/")
	if err != nil {
		b.Fatal(err)
	}
	st, id := New(nil, keys), pod.Identity{RCID: "01jd0000000000000000000000", Role: "main", Index: 7}
	labels := map[string]string{
		"app": "web", "tier": "front", "example.com/team": "shop", pod.RCIDLabel: id.RCID,
		pod.PodIDLabel: "web",
	}
	ports := map[string]int{"http": 8080, "admin": 8081}
	benchDecode(b, "placement", &st.Pods, keys.Pods.Key(id.String()), pod.Placement{
		Identity: id, Node: "n1", PodID: "web", Digest: hexOf(
			"m"), RunState: pod.Running, Revision: 1_700_000_000_000, Labels: labels, Ports: ports,
		ChangedAt: time.Now(),
	})
	benchDecode(b, "reality", &st.Realities, keys.Realities.Key("n1", id.String()), pod.Reality{
		Identity: id, Node: "n1",
		Digest: hexOf("m"), Revision: 1_700_000_000_000, State: pod.StateReady, Available: true, Since: time.Now(),
	})
	inUse := make([]int, 64)
	for i := range inUse {
		inUse[i] = 1000 + i
	}
	benchDecode(b, "node", &st.Nodes, keys.Nodes.Key("n1"), node.Node{
		Name: "n1", Labels: labels, Capacity: node.Capacity{
			Slots: 100, CPU: 64_000,
			Memory: 1 << 38,
		}, PortRange: node.PortRange{Min: 20_000, Max: 30_000},
		Address: "10.0.0.1", ConsulNode: "m1", Version: "0.2.0", Epoch: NewID(), PortsInUse: inUse,
		OrphanPages: &node.OrphanPages{},
	})
	claims := map[string]node.Claim{}
	for i := range 100 {
		id.Index = i
		claims[id.String()] = node.NewClaim(id, map[string]int{"http": 20_000 + i}, 500, 1<<30)
	}
	benchDecode(b, "reservation", &st.Reservations, keys.Reservations.Key("n1"), node.Reservation{Claims: claims})
}

func benchDecode[T any](b *testing.B, name string, of *Records[T], key string, record T) {
	b.Helper()
	pair := consul.Pair{Key: key, Value: asJSON(record), ModifyIndex: 1}
	b.Run(fmt.Sprintf("%s/unchecked", name), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var r T
			if err := json.Unmarshal(pair.Value, &r); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(fmt.Sprintf("%s/checked", name), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := of.decode(pair); err != nil {
				b.Fatal(err)
			}
		}
	})
}
