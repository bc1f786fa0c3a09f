package farm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// judged is a cluster on its own Consul. At the end of a test, a checker checks the whole history: each promise at each
// index of the log. The checker has the same rules as for the runs under faults.
type judged struct {
	*cluster
	server *consultest.Server
	stops  []func() // of the nodes

	mu     sync.Mutex
	events *json.Encoder
	file   *os.File
}

// patient is how long sessions last, and how long the tests wait, because the machine may be busy.
const patient = 5 * time.Minute

// judgedLog makes a server keep its whole log, in a format that the checker reads, and lets many nodes connect from one
// address.
const judgedLog = `{"raft_logstore": {"backend": "boltdb"}, "raft_snapshot_threshold": 100000000, "raft_trailing_logs": 100000000,
	"limits": {"http_max_conns_per_client": 2000}}`

func newJudged(t *testing.T, nodes int) *judged {
	t.Helper()
	server, err := consultest.StartOnDisk(judgedLog)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	j := &judged{cluster: clusterAt(t, server.Addr), server: server}
	if j.file, err = os.Create(filepath.Join(server.Dir, checker.EventsFile)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.file.Close() })
	j.events = json.NewEncoder(j.file)
	j.put(j.store.Keys().Schema.Key(), mustJSON(t, store.Schema{
		FormatVersion: store.FormatVersion, Epoch: store.NewID(), CreatedAt: time.Now().Add(-time.Hour),
	}))
	for i := range nodes {
		n := &simnode.Node{
			Record: node.Node{Name: fmt.Sprintf("n%d", i), Capacity: node.Capacity{Slots: 40}, Address: "127.0.0.1"},
			TTL:    patient, React: j.react(fmt.Sprintf("n%d", i)),
		}
		n.Client, n.Store = j.connect()
		j.nodes[n.Record.Name] = n
		j.stops = append(j.stops, j.background(n.Run))
	}
	return j
}

// react obeys the intent, and notes it for the checker.
func (j *judged) react(name string) func(pod.Intent) pod.Reality {
	return func(in pod.Intent) pod.Reality {
		j.note(checker.EventNode, name, in)
		return simnode.Obey(in)
	}
}

func (j *judged) note(kind, name string, in pod.Intent) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.events.Encode(checker.Event{
		At: time.Now().UnixNano(), Kind: kind, Node: name, ID: in.Identity.String(), State: string(in.State),
		Digest: in.Digest, Revision: in.Revision, Ports: in.Ports,
	}); err != nil {
		j.t.Error(err)
	}
}

// judge ends everything. It fails the test unless each promise was kept at each index, and there was something to
// check.
func (j *judged) judge(farms ...func()) {
	j.t.Helper()
	for _, stop := range append(farms, j.stops...) {
		stop()
	}
	for name, n := range j.nodes {
		for _, in := range n.Running() {
			j.note(checker.EventEnd, name, in)
		}
	}
	pairs, err := j.client.List(j.t.Context(), "", consul.Consistent)
	if err != nil {
		j.t.Fatal(err)
	}
	final := checker.Final{}
	for _, p := range pairs {
		final.Keys = append(final.Keys, checker.FinalKey{
			Key: p.Key, Value: p.Value, ModifyIndex: p.ModifyIndex,
			Session: p.Session,
		})
		final.Index = max(final.Index, p.ModifyIndex)
	}
	if err := os.WriteFile(filepath.Join(j.server.Dir, checker.FinalFile), mustJSON(j.t, final), 0o600); err != nil {
		j.t.Fatal(err)
	}
	j.server.Kill() // the log can only be read after that
	result, err := checker.Check(j.server.Dir, []string{"data"}, nil)
	if err != nil {
		j.t.Fatal(err)
	}
	for i, v := range result.Violations {
		if i < 10 {
			j.t.Error(v)
		}
	}
	for _, rule := range []string{
		"P1 fence", "P1 held", "P2 version", "P3 placed", "P4 stop", "P5 given up",
		"P6 minimum", "P6 surge",
	} {
		if result.Checked[rule] == 0 {
			j.t.Errorf("%s had nothing to judge", rule)
		}
	}
	j.t.Logf("%d entries of the log, %d changes: %v", result.Entries, result.Transactions, result.Checked)
}

// fate is what happens to one request on its way to Consul.
type fate int

const (
	arrives fate = iota
	lost         // the sender is cut off before Consul gets the request
	unheard      // the sender is cut off after Consul has carried the request out
	delayed      // the sender is cut off, and Consul gets the request after all others
	final        // like unheard, and nothing passes any more: the machine of the sender has died
)

// line stands between a farm and Consul, and decides the fate of the batches of the farm's passes.
type line struct {
	*httptest.Server
	t *testing.T

	mu    sync.Mutex
	fates func() fate // of the next batch that stops or places pods
	dead  bool
	late  []func() (status int)
	met   map[fate]int
	died  chan struct{}
}

func (j *judged) line(fates func() fate) *line {
	l := &line{t: j.t, fates: fates, met: map[fate]int{}, died: make(chan struct{})}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: j.addr})
	forward.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		send := func(w http.ResponseWriter, ctx context.Context) {
			r := r.Clone(ctx)
			r.Body = io.NopCloser(bytes.NewReader(body))
			forward.ServeHTTP(w, r)
		}
		unseen := func() int {
			w := httptest.NewRecorder()
			send(w, context.WithoutCancel(r.Context()))
			return w.Code
		}
		switch l.fateOf(r.URL.Path, body, unseen) {
		case arrives:
			send(w, r.Context())
			return
		case unheard:
			unseen()
		case final:
			unseen()
			close(l.died)
		case lost, delayed:
		}
		panic(http.ErrAbortHandler)
	}))
	j.t.Cleanup(l.Close)
	return l
}

func (l *line) fateOf(path string, body []byte, send func() int) fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return lost
	}
	if path != "/v1/txn" || !bytes.Contains(body, []byte(`"Verb":"check-session"`)) ||
		!bytes.Contains(body, []byte("/pods/")) {
		return arrives
	}
	f := l.fates()
	l.met[f]++
	l.dead = f == final
	if f == delayed {
		l.late = append(l.late, send)
	}
	return f
}

// deliver sends the delayed requests. The fence has moved by now.
func (l *line) deliver() {
	l.t.Helper()
	l.mu.Lock()
	late := l.late
	l.late = nil
	l.mu.Unlock()
	for _, send := range late {
		if status := send(); status != http.StatusConflict {
			l.t.Errorf("Consul answers a batch of an earlier pass with status %d", status)
		}
	}
}

// dies returns when the machine of the farm behind a line has died. It ends the farm's session, which would otherwise
// last for long.
func (j *judged) dies(l *line) {
	j.t.Helper()
	select {
	case <-l.died:
	case <-time.After(patient):
		j.t.Fatal("the farm has not sent its last batch")
	}
	l.CloseClientConnections()
	lock, err := j.client.Get(j.t.Context(), j.store.Keys().Locks.Key("web"), consul.Consistent)
	if err != nil {
		j.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(j.t.Context(), http.MethodPut,
		"http://"+j.addr+"/v1/session/destroy/"+lock.Session, nil)
	if err != nil {
		j.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		j.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		j.t.Fatalf("end session %q: status %d", lock.Session, resp.StatusCode)
	}
}

// farmThrough runs a farm whose requests go through a line.
func (j *judged) farmThrough(id string, l *line, commit func(*store.Batch) error) (stop func()) {
	log, err := obs.NewLogger(testWriter{j.t}, "info", "text")
	if err != nil {
		j.t.Fatal(err)
	}
	addr := j.addr
	if l != nil {
		addr = l.Listener.Addr().String()
	}
	client, err := consul.New(consul.Config{Address: addr})
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(client.Close)
	st := store.New(client, j.store.Keys())
	cfg := j.session("farm", id)
	cfg.TTL = patient
	return j.background(func(ctx context.Context) error {
		return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
			return farm.NewFarm(farm.Config{
				ID: id, Store: &faulty{Session: st.FarmSession(s, id), commit: commit}, Log: log,
				TTL:        500 * time.Millisecond,
				SweepEvery: time.Second, StableAfter: time.Hour,
			}).Start(ctx)
		})
	})
}

// large sets how many replicas there are and how many stay available, and allows a mass stop, as rcctl does.
func large(replicas, least int) func(*rc.RC) {
	return func(r *rc.RC) {
		minimum(replicas, least)(r)
		r.AllowMassStop = r.Generation
	}
}

// many is the number of pods at first. half is the number of pods that are left in the end. least is the number of pods
// that are always available.
const (
	many  = 300
	half  = many / 2
	least = half - 3
)

// touch writes a node's reservation unchanged, so that Consul refuses each batch that was computed from it.
func (j *judged) touch(name string) {
	key := j.store.Keys().Reservations.Key(name)
	pair, err := j.client.Get(context.Background(), key, consul.Consistent)
	if errors.Is(err, consul.ErrNotFound) {
		pair.Value, err = []byte(`{"holders":{}}`), nil
	}
	if err == nil {
		_, err = j.client.Commit(context.Background(),
			[]consul.Op{consul.CAS(key, append(pair.Value, ' '), pair.ModifyIndex)})
	}
	if err != nil && !errors.Is(err, consul.ErrRefused) { // refused: another write has just come first
		j.t.Error(err)
	}
}

// Consul refuses some batches of passes with many batches, because other writers change reservations at the same time,
// and pods stop being available.
func TestPassesOfManyBatchesLandInPart(t *testing.T) {
	t.Parallel()
	j := newJudged(t, 12)
	var mu sync.Mutex
	seen, touched, fallen := 0, 0, 0
	met := map[pod.Identity]bool{} // the first pod that a batch stops
	stop := j.farmThrough("f1", nil, func(b *store.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		if seen++; seen%2 == 0 && touched < 20 && len(b.Reservations) > 0 {
			touched++
			j.touch(b.Reservations[0].Node)
		}
		if stopped := stops(b); len(stopped) > 0 && !met[stopped[0]] && fallen < 20 {
			met[stopped[0]] = true // only once, even if the batch is sent again
			for range 5 {
				j.amend(replica(fallen), pod.StateUnhealthy, false)
				fallen++
			}
		}
		return nil
	})
	j.apply("web", testManifest("web", 0), large(many, least))
	j.convergedWithin(patient, "web", many)
	j.apply("web", testManifest("web", 0), large(half, least))
	consultest.Eventually(t, patient, func() error {
		if n := len(j.running("web")); n != half {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	mu.Lock()
	for i := range fallen {
		if len(j.running("web")[replica(i)]) > 0 {
			j.amend(replica(i), pod.StateReady, true)
		}
	}
	mu.Unlock()
	j.convergedWithin(patient, "web", half)
	j.judge(stop)
	if touched < 5 || fallen < 10 {
		t.Errorf("%d batches of %d met a changed reservation, %d pods dropped", touched, seen, fallen)
	}
}

// Of many batches, some have an unknown outcome: they never arrive, they land and the answer is lost, or they arrive
// after all others.
func TestUnknownOutcomesAmongManyBatches(t *testing.T) {
	t.Parallel()
	j := newJudged(t, 12)
	batch := 0
	l := j.line(func() fate {
		if batch++; batch%3 != 0 || batch > 36 {
			return arrives
		}
		return []fate{lost, unheard, delayed}[batch/3%3]
	})
	stop := j.farmThrough("f1", l, nil)
	for _, replicas := range []int{many, half} {
		j.apply("web", testManifest("web", 0), large(replicas, least))
		j.convergedWithin(patient, "web", replicas)
		l.deliver()
	}
	j.convergedWithin(patient, "web", half)
	j.judge(stop)
	for _, f := range []fate{lost, unheard, delayed} {
		if l.met[f] == 0 {
			t.Errorf("of %d batches none met fate %d: %v", batch, f, l.met)
		}
	}
	t.Logf("batches by fate: %v", l.met)
}

// A farm dies among many batches, before it knows whether the last one has landed, and another farm takes over. This
// happens while pods are placed, and again while they are stopped.
func TestAFarmDiesAmongManyBatches(t *testing.T) {
	t.Parallel()
	j := newJudged(t, 12)
	var dying [2]*line
	var stops []func()
	left := 5 // batches of the farm that dies next
	for i := range dying {
		dying[i] = j.line(func() fate {
			if left--; left == 0 {
				return final
			}
			return arrives
		})
	}
	stops = append(stops, j.farmThrough("f1", dying[0], nil))
	j.apply("web", testManifest("web", 0), large(many, least))
	j.dies(dying[0])
	stops = append(stops, j.farmThrough("f2", dying[1], nil))
	j.convergedWithin(patient, "web", many)
	dying[1].mu.Lock()
	left = 2
	dying[1].mu.Unlock()
	j.apply("web", testManifest("web", 0), large(half, least))
	j.dies(dying[1])
	stops = append(stops, j.farmThrough("f3", nil, nil))
	j.convergedWithin(patient, "web", half)
	j.judge(stops...)
}
