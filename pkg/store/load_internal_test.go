package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// parts makes random changes, each of another identity, and many of the same few nodes.
type parts struct {
	*rapid.T
	made int
}

func (p *parts) node() string {
	return fmt.Sprintf("%s-%d", rapid.StringMatching(`[a-z<&"]{1,40}`).Draw(p.T, "name"),
		rapid.IntRange(0, 3).Draw(p.T, "node"))
}

func (p *parts) claim(id pod.Identity) node.Claim {
	ports := map[string]int{}
	for _, port := range rapid.SliceOfN(rapid.IntRange(1, 65535), 0, 3).Draw(p.T, "ports") {
		ports[fmt.Sprint(port)] = port
	}
	return node.NewClaim(id, ports, rapid.Int64Range(0, 64000).Draw(p.T, "cpu"),
		rapid.Int64Range(0, 1<<40).Draw(p.T, "memory"))
}

func (p *parts) change(nodes []string) Part {
	index := rapid.SampledFrom([]uint64{0, 7})
	part := Part{
		SchemaIndex: index.Draw(p.T, "schema"), BreakerIndex: index.Draw(p.T,
			"breaker"), DropsIndex: index.Draw(p.T, "drops"),
	}
	id := pod.Identity{RCID: "web", Role: rapid.StringMatching(`[a-z]{1,10}`).Draw(p.T, "role"), Index: p.made}
	p.made++
	w := PodWrite{Identity: id, Index: index.Draw(p.T, "index")}
	text := rapid.String()
	if rapid.Bool().Draw(p.T, "there") {
		w.Placement = &pod.Placement{
			Identity: id, Node: nodes[0], PodID: text.Draw(p.T,
				"pod"), Labels: map[string]string{text.Draw(p.T, "key"): text.Draw(p.T, "value")},
			Digest: text.Draw(p.T, "digest"), RunState: pod.Running, Revision: rapid.Int64().Draw(p.T,
				"revision"), ChangedAt: time.Now(),
		}
	}
	part.Pods = append(part.Pods, w)
	for _, name := range slices.Compact(
		slices.Sorted(slices.Values(rapid.SliceOfN(rapid.SampledFrom(nodes), 0, 3).Draw(p.T, "nodes")))) {
		in := IntentWrite{Node: name, Identity: id}
		if w.Placement != nil {
			told := w.Placement.Intent()
			in.Intent = &told
		}
		part.Intents = append(part.Intents, in)
		if rapid.Bool().Draw(p.T, "reserve") {
			value := node.Reservation{Claims: map[string]node.Claim{id.String(): p.claim(id)}}
			part.Reservations = append(part.Reservations, ReservationWrite{Node: name, Index: 3, Value: value})
		}
		if rapid.Bool().Draw(p.T, "reported") {
			if part.Reported == nil {
				part.Reported = map[At]uint64{}
			}
			part.Reported[At{Node: name, Identity: id}] = index.Draw(p.T, "reported index")
		}
		if rapid.Bool().Draw(p.T, "dead") {
			if part.Dead == nil {
				part.Dead = map[string]uint64{}
			}
			part.Dead[name] = rapid.SampledFrom([]uint64{0, 5, 6}).Draw(p.T, "dead index")
		}
	}
	for range rapid.IntRange(0, 2).Draw(p.T, "answers") {
		part.Answered = append(part.Answered, NewID())
	}
	return part
}

// While changes are added to a batch, its load is counted. In the end, the transaction has exactly the counted
// operations, and at most the counted bytes. So Consul never refuses a batch because of its size.
func TestCountedIsAVersion(t *testing.T) {
	t.Parallel()
	st := empty(t).FarmSession(&consul.Session{}, "f1")
	rapid.Check(t, func(r *rapid.T) {
		p := &parts{T: r}
		nodes := make([]string, 6)
		for i := range nodes {
			nodes[i] = p.node()
		}
		b := &Batch{Fence: Fence{Key: st.keys.Locks.Key("web"), Session: NewID(), Index: 9}, RCID: "web", RCIndex: 4}
		if rapid.Bool().Draw(r, "beside") {
			b.Beside = map[string]uint64{"api": 3, "shop": 0}
		}
		if rapid.Bool().Draw(r, "rollout") {
			b.Rollout = new(rapid.Uint64Range(0, 9).Draw(r, "index"))
		}
		if rapid.Bool().Draw(r, "newest") {
			b.Newest = &Reported{At: At{Node: nodes[0], Identity: pod.Identity{RCID: "web", Role: "newest"}}, Index: 8}
		}
		load := st.HeadLoad(b, true)
		for range rapid.IntRange(0, 60).Draw(r, "changes") {
			part := p.change(nodes)
			l := st.LoadOf("web", &part)
			if !b.Joins(&part) {
				continue
			}
			fits := load.Takes(l, 1)
			before := load.ops
			load.Add(l)
			if fits != (load.ops <= consul.MaxTxnOps && load.bytes <= consul.MaxTxnBytes) {
				r.Fatalf("%d operations and %d of one more: fits %t", before, load.ops-before, fits)
			}
			b.Add(&part)
		}
		audit := NewAudit("f1", "reconcile", "web", []string{"place main.0"})
		b.Audit, b.Status = &audit, &rc.Status{RCID: "web"}
		ops := st.ops(b)
		if len(ops) != load.ops {
			r.Fatalf("%d operations are counted, and %d made", load.ops, len(ops))
		}
		if bytes := consul.TxnBytes(ops); bytes > load.bytes {
			r.Fatalf("%d bytes are counted, and %d made", load.bytes, bytes)
		}
		seen := map[string]bool{b.Fence.Key: true}
		for _, op := range ops[2:] { // the fence has two operations on one key
			if seen[op.Key()] {
				r.Fatalf("two operations on %s", op.Key())
			}
			seen[op.Key()] = true
		}
	})
}

// If two changes answer the same request, the batch has two operations for it, and both are counted.
func TestWhatIsWrittenTwiceIsCountedTwice(t *testing.T) {
	t.Parallel()
	st := empty(t).FarmSession(&consul.Session{}, "f1")
	b := &Batch{Fence: Fence{Key: st.keys.Locks.Key("web"), Session: NewID(), Index: 9}, RCID: "web", RCIndex: 4}
	load := st.HeadLoad(b, false)
	for i := range 2 {
		part := Part{
			Pods:     []PodWrite{{Identity: pod.Identity{RCID: "web", Role: "main", Index: i}}},
			Answered: []string{"r1"},
		}
		load.Add(st.LoadOf("web", &part))
		b.Add(&part)
	}
	if ops := st.ops(b); len(ops) != load.ops {
		t.Errorf("%d operations are counted, and %d made", load.ops, len(ops))
	}
}

// If two changes have the same condition with different indices, only one of the conditions can be true. Such changes
// never share a transaction.
func TestPartsThatDisagreeAreKeptApart(t *testing.T) {
	t.Parallel()
	a, b := Part{Dead: map[string]uint64{"n1": 4}}, Part{Dead: map[string]uint64{"n1": 5}}
	if a.Joins(&b) {
		t.Error("they share a batch")
	}
	same := Part{Dead: map[string]uint64{"n1": 4, "n2": 0}}
	if !a.Joins(&same) {
		t.Error("they do not share a batch")
	}
	if a.Add(&same); len(a.Dead) != 2 {
		t.Errorf("together: %+v", a)
	}
}

// An audit record never has more than MaxAuditBytes.
func TestAnAuditRecordIsBounded(t *testing.T) {
	t.Parallel()
	var lines, names []string
	for i := range 1000 {
		lines = append(lines, strings.Repeat("<", 10_000))
		names = append(names, fmt.Sprintf("%s-%d", strings.Repeat("n", 250), i))
	}
	a := NewAudit(lines[0], lines[0], "web", lines).OnNodes(names...)
	if size := len(asJSON(a)); size > MaxAuditBytes {
		t.Errorf("%d bytes, allowed %d", size, MaxAuditBytes)
	}
}
