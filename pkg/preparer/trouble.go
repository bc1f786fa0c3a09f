package preparer

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// repeatAfter is how long the same trouble stays silent before it is logged again.
const repeatAfter = time.Minute

// trouble logs what goes wrong once when it begins, once when it turns into something else, now and then while it lasts,
// and once when it is over, however often it is tried.
type trouble struct {
	log obs.Logger

	mu   sync.Mutex
	last map[string]lastTrouble
}

type lastTrouble struct {
	message string
	at      time.Time
}

func newTrouble(log obs.Logger) *trouble {
	return &trouble{log: log, last: map[string]lastTrouble{}}
}

// report records trouble with one thing.
func (t *trouble) report(key, message string, err error) {
	fields := obs.Fields{obs.Error: err, obs.Key: key}
	if reason := denied(err); reason != "" {
		fields[obs.Reason] = reason
		message += ": " + reason
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	last, known := t.last[key]
	if known && last.message == message && time.Since(last.at) < repeatAfter {
		return
	}
	t.last[key] = lastTrouble{message: message, at: time.Now()}
	t.log.WithFields(fields).Warn(message)
}

// over records that the thing works.
func (t *trouble) over(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.last[key]; known {
		delete(t.last, key)
		t.log.WithField(obs.Key, key).Info("works again")
	}
}

// denied says in words that an error is about the token's permissions, or nothing when it is not.
func denied(err error) string {
	switch {
	case errors.Is(err, store.ErrFiltered):
		return "the ACL token lacks a read permission"
	case strings.Contains(err.Error(), "Permission denied"):
		return "the ACL token lacks a permission"
	case strings.Contains(err.Error(), "ACL not found"):
		return "Consul does not know the ACL token"
	default:
		return ""
	}
}
