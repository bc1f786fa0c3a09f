// Package claim says whether this node may do what Consul asks of it: whose the node's name is, when Consul's servers were last in touch, and what
// pods may do there. It knows no pods. Each of its types has one lock, which is not held while anything is read or written.
package claim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// nameFile says how this data directory last held its node's name.
const nameFile = "name.json"

// note is what is remembered of the node's record while the name was ours. It tells a record that another host wrote after
// that, which declares this one dead, from one that is older, or of a store that was wiped or restored.
type note struct {
	Node        string `json:"node"`
	Incarnation string `json:"incarnation"`
	Epoch       string `json:"nonce"` // of the cluster, as the record had it
	Index       uint64 `json:"index"` // of the record, when it first said all this
	// Lost is the host that has taken the name over; empty: none has.
	Lost string `json:"lost,omitempty"`
}

// locked returns the note after the node's record was seen under our lock. Nothing changes while incarnation and epoch do not.
func (n note) locked(rec store.Rec[node.Node]) note {
	v := rec.Value
	if v.Epoch == "" || n.Node == v.Name && n.Incarnation == v.Incarnation && n.Epoch == v.Epoch {
		return n
	}
	return note{Node: v.Name, Incarnation: v.Incarnation, Epoch: v.Epoch, Index: rec.Index}
}

// keeps returns why a record that belongs to another host does not end our pods, and nothing when it does. wentBack is the
// newest epoch when this preparer last saw the store go back in time.
func (n note) keeps(rec store.Rec[node.Node], host, wentBack string) (why string) {
	v := rec.Value
	switch {
	case v.Host == host || v.Host == "":
		return "the record does not name another data directory"
	case n.Node != v.Name:
		return "this data directory has not held the name"
	case v.Epoch == "":
		return "the other host has not read its intents yet"
	case v.Epoch != n.Epoch, v.WentBack >= n.Epoch, wentBack >= n.Epoch:
		return "the store was wiped or restored since this host held the name"
	case rec.Index <= n.Index:
		return "the record is older than this host's last one"
	default:
		return ""
	}
}

// rival is a host that seems to have taken the name over. One answer that says so may be a strange one.
type rival struct {
	host  string // empty: there is none
	since time.Time
}

// add takes in one more answer, and returns whether two that are so far apart say the same, without another between them.
func (s *rival) add(host string, now time.Time, after time.Duration) (sure bool) {
	if s.host != host {
		*s = rival{host: host, since: now}
		return false
	}
	return host != "" && now.Sub(s.since) >= after
}

// Name is whose the node's name is, as far as this host knows, and what tells that: how it last held the name, and how far it has seen
// the store go.
type Name struct {
	node, host string // the name, and the id of the data directory
	path       string
	limiter    *loop.LogLimiter
	writing    sync.Mutex // held by whoever changes the note, so that the file has the last change; nobody who asks waits for it

	mu       sync.Mutex
	note     note
	refused  error // why the name is another host's; nil: it is not, or nobody knows
	held     bool  // this preparer has taken the name's lock, and was not refused since
	takeOver bool  // from whichever host has the name; false once it was done
	rival    rival
	kept     string // why pods keep running without the name, as last found
	newest   string // the newest epoch ever seen
	wentBack string // the newest epoch when the store was last seen to go back in time
}

// OpenName reads what the data directory knows of the node's name. A note that is garbage is as none: then nothing tells that the name was
// ever ours, and pods run on. With takeOver the name may be taken from another host, once.
func OpenName(dir, nodeName string, takeOver bool, limiter *loop.LogLimiter) (*Name, error) {
	n := &Name{node: nodeName, path: filepath.Join(dir, nameFile), limiter: limiter, takeOver: takeOver}
	var err error
	if n.host, err = hostID(dir); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(n.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read note of the node's name: %w", err)
	}
	if err == nil && json.Unmarshal(data, &n.note) != nil {
		n.note = note{}
	}
	return n, nil
}

// Host is the id of the data directory.
func (n *Name) Host() string { return n.host }

// Lost reports whether another host has taken the name over.
func (n *Name) Lost() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lostTo() != ""
}

// lostTo returns the host that has taken the name over; empty: none has. The caller holds n.mu.
func (n *Name) lostTo() string {
	if n.note.Node != n.node {
		return ""
	}
	return n.note.Lost
}

// Refusal returns why the node's name is not this host's, nil when it is or nobody knows.
func (n *Name) Refusal() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if host := n.lostTo(); host != "" {
		return errors.Join(fmt.Errorf("the name of node %s was taken over from this host by %s, so that none of its pods may run", n.node, host), n.refused)
	}
	return n.refused
}

// Refuse notes that the name belongs to another host, and returns whether that is new. A preparer that is refused is not in touch, so that
// pods with disconnect.stop_after stop: they may have been started by the other.
func (n *Name) Refuse(err error) (began bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	began, n.refused, n.held = n.refused == nil, err, false
	return began
}

// Standing is how a preparer stands to its node's name.
type Standing string

// The standings.
const (
	Unproven Standing = "unproven" // Consul has not answered yet, and this data directory has not held the name
	Former   Standing = "former"   // Consul has not answered yet; this data directory held the name when its last preparer ended
	Held     Standing = "held"     // this preparer has taken the lock, and Consul has not contradicted since
	Refused  Standing = "refused"  // the name is another host's
)

// Standing returns how this preparer stands to the name.
func (n *Name) Standing() Standing {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.refused != nil, n.lostTo() != "":
		return Refused
	case n.held:
		return Held
	case n.note.Node == n.node:
		return Former
	default:
		return Unproven
	}
}

// TakeOver reports whether the name is to be taken from whichever host has it.
func (n *Name) TakeOver() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.takeOver
}

// Take notes that the name is this host's: its lock was taken. Pods that were stopped for the loss wait for their intents all the same.
func (n *Name) Take() {
	n.mu.Lock()
	n.takeOver, n.rival, n.kept = false, rival{}, ""
	n.mu.Unlock()
	n.change(func(old note) note {
		old.Lost = ""
		return old
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused, n.held = nil, true
}

// Saw notes how the node's record is under this host's lock.
func (n *Name) Saw(rec store.Rec[node.Node]) {
	n.change(func(old note) note { return old.locked(rec) })
}

// change changes the note. What cannot be written counts all the same, until this preparer ends.
func (n *Name) change(change func(note) note) {
	n.writing.Lock()
	defer n.writing.Unlock()
	n.mu.Lock()
	before := n.note
	next := change(before)
	n.note = next
	n.mu.Unlock()
	if next == before {
		return
	}
	data, err := json.Marshal(next)
	if err == nil {
		err = durable.ReplaceFile(n.path, data)
	}
	n.limiter.Saw("note of the name", "it cannot be noted whose the node's name is; after a restart this must be found out anew", err)
}

// ConfirmTakeover finds out whether the name, which another host has, was taken over from this one, from the node's record as it was read, nil for one
// that is gone or cannot be understood. Whoever took it over has declared this machine dead, and its pods are started elsewhere: ours end, so
// that nothing runs twice (P5). Anything else ends nothing (P4). Two answers are needed, confirm apart. kept is why pods run on, when
// that is news.
func (n *Name) ConfirmTakeover(rec *store.Rec[node.Node], now time.Time, confirm time.Duration) (lost bool, kept string) {
	if lost, kept = n.takenOver(rec, now, confirm); lost {
		n.change(func(old note) note {
			old.Lost = HostOf(rec.Value)
			return old
		})
	}
	return lost, kept
}

func (n *Name) takenOver(rec *store.Rec[node.Node], now time.Time, confirm time.Duration) (lost bool, kept string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lostTo() != "" {
		return false, ""
	}
	why, host := "the record is gone or cannot be read", ""
	if rec != nil {
		why, host = n.note.keeps(*rec, n.host, n.wentBack), rec.Value.Host
	}
	if why != "" {
		host = ""
	}
	if why != n.kept {
		n.kept, kept = why, why
	}
	return n.rival.add(host, now, confirm), kept
}

// HostOf names the host whose record it is.
func HostOf(n node.Node) string { return n.Host + " at agent " + n.ConsulNode }

// SawEpoch notes a cluster epoch. They sort by the time of their making.
func (n *Name) SawEpoch(epoch string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.newest = max(n.newest, epoch)
}

// WentBack notes that the store went back in time, which the node record tells the farms: they may have missed it.
func (n *Name) WentBack() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wentBack = n.newest
	return store.ErrWentBack
}

// WentBackAt is what the node's record says of that, until a farm has answered with a newer epoch.
func (n *Name) WentBackAt(epoch string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if epoch > n.wentBack {
		return ""
	}
	return n.wentBack
}

// hostFile names this data directory for ever, so that two machines that were given one name are told apart.
const hostFile = "host-id"

var hostPattern = regexp.MustCompile(`^[0-9a-z]{26}$`)

// hostID returns the id of the data directory, a new one where there is none that can be read.
func hostID(dir string) (string, error) {
	path := filepath.Join(dir, hostFile)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read host id: %w", err)
	}
	if id := strings.TrimSpace(string(data)); hostPattern.MatchString(id) {
		return id, nil
	}
	id := strings.ToLower(ulid.Make().String())
	if err := durable.WriteFile(path, []byte(id+"\n")); err != nil {
		return "", fmt.Errorf("write host id: %w", err)
	}
	return id, nil
}
