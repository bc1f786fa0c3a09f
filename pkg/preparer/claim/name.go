// Package claim decides whether this node may do what Consul asks of it. It knows which host owns the node's name, when
// Consul's servers last answered, and what pods may do while they do not answer.
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

const nameFile = "name.json"

// note is what this host remembers about the node's record from when it held the name. If another host has written the
// record since, that host has declared this host dead. The note distinguishes such a record from an older one, and from
// one in a store that was wiped or restored.
type note struct {
	Node        string `json:"node"`
	Incarnation string `json:"incarnation"`
	Epoch       string `json:"nonce"` // of the cluster, from the record
	Index       uint64 `json:"index"` // Consul index of the record when it first had these values
	// Lost is the host that took the name over; empty: none.
	Lost string `json:"lost,omitempty"`
}

// locked takes in this host's own record. Only a new incarnation or epoch changes the note.
func (n note) locked(rec store.Rec[node.Node]) note {
	v := rec.Value
	if v.Epoch == "" || n.Node == v.Name && n.Incarnation == v.Incarnation && n.Epoch == v.Epoch {
		return n
	}
	return note{Node: v.Name, Incarnation: v.Incarnation, Epoch: v.Epoch, Index: rec.Index}
}

// keeps returns why this host's pods continue to run although the node's record is from another host, or "" if they
// must end. wentBack is the newest epoch that was known when the store last went back in time.
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

// rival is a host that has perhaps taken the name over.
type rival struct {
	host  string // empty: no rival
	since time.Time
}

// add stores one more answer. sure: an earlier answer, at least `after` ago, named the same host, and none since then
// another.
func (r *rival) add(host string, now time.Time, after time.Duration) (sure bool) {
	if r.host != host {
		*r = rival{host: host, since: now}
		return false
	}
	return host != "" && now.Sub(r.since) >= after
}

// Name has what this host knows about which host owns the node's name.
type Name struct {
	node, host string // the name, and the id of the data directory
	path       string
	limiter    *loop.LogLimiter
	// writing is held while the note is changed and written, so that the file has the last change.
	writing sync.Mutex

	mu       sync.Mutex
	note     note
	refused  error // why another host owns the name; nil: none does, or not known
	held     bool  // this preparer took the name's lock, and was not refused the name since
	takeOver bool  // take the name from any host that has it; false after it was taken
	rival    rival
	kept     string // why pods keep running without the name, as last reported
	newest   string // the newest epoch seen
	wentBack string // the newest epoch known when the store last went back in time
}

// OpenName reads the note and the host id. It ignores a note that it cannot parse: then pods continue to run. If
// takeOver is true, this host takes the name from another host, once.
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

// Host is the data directory's id.
func (n *Name) Host() string { return n.host }

// Lost reports whether another host has taken the name over.
func (n *Name) Lost() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lostTo() != ""
}

// lostTo returns "" for none. The caller holds n.mu.
func (n *Name) lostTo() string {
	if n.note.Node != n.node {
		return ""
	}
	return n.note.Lost
}

// Refusal returns why this host does not own the node's name; nil if it does, or if this is not known.
func (n *Name) Refusal() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if host := n.lostTo(); host != "" {
		return errors.Join(fmt.Errorf("the name of node %s was taken over from this host by %s, so that none of its "+
			"pods may run", n.node, host), n.refused)
	}
	return n.refused
}

// Refuse is called when Consul answers that the name belongs to another host. It returns whether that is new. A refused
// preparer has no contact, so its pods with disconnect.stop_after stop: the other host may have started them.
func (n *Name) Refuse(err error) (began bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	began, n.refused, n.held = n.refused == nil, err, false
	return began
}

// Standing is what a preparer knows about its right to the node's name.
type Standing string

// The standings.
const (
	Unproven Standing = "unproven" // Consul has not answered yet, and this data directory never held the name
	// Consul has not answered yet, and this data directory held the name before
	Former  Standing = "former"
	Held    Standing = "held"    // this preparer took the lock, and was not refused since
	Refused Standing = "refused" // another host owns the name
)

// Standing returns the standing of this preparer.
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

// TakeOver reports whether to take the name from any host.
func (n *Name) TakeOver() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.takeOver
}

// Take is called when this host took the name's lock. Pods that were stopped because of the loss still wait for their
// intents.
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

// Saw takes in the record that was read under the lock.
func (n *Name) Saw(rec store.Rec[node.Node]) {
	n.change(func(old note) note { return old.locked(rec) })
}

// change keeps a note that cannot be written until this preparer ends.
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
	n.limiter.Saw("note of the name", "it cannot be noted whose the node's name is; after a restart this must be "+
		"found out anew", err)
}

// ConfirmTakeover finds out whether another host took the name over from this host. rec is the node's record in Consul;
// nil if it is gone or cannot be parsed. If another host took the name over, farms start the pods elsewhere, so this
// host's pods must end (P5). In all other cases no pod ends (P4). lost is true after two such answers that are at least
// confirm apart. kept is why pods continue to run, if this reason is new.
func (n *Name) ConfirmTakeover(rec *store.Rec[node.Node], now time.Time,
	confirm time.Duration,
) (lost bool, kept string) {
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

// HostOf names the writer of the record.
func HostOf(n node.Node) string { return n.Host + " at agent " + n.ConsulNode }

// SawEpoch stores the newest epoch. The text of an epoch sorts by the time when it began.
func (n *Name) SawEpoch(epoch string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.newest = max(n.newest, epoch)
}

// WentBack is called when the store went back in time. It returns store.ErrWentBack.
func (n *Name) WentBack() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wentBack = n.newest
	return store.ErrWentBack
}

// WentBackAt returns the newest epoch that was known when the store went back in time, for the node's record: farms can
// have missed that. If epoch is newer, a farm has renewed the epoch already, and it returns "".
func (n *Name) WentBackAt(epoch string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if epoch > n.wentBack {
		return ""
	}
	return n.wentBack
}

// hostFile has a permanent id, which distinguishes two machines with the same node name.
const hostFile = "host-id"

var hostPattern = regexp.MustCompile(`^[0-9a-z]{26}$`)

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
