// Package loop has what a node's loops say of what goes wrong: a log that stays quiet while nothing new does. The
// parts of a node log through its Trouble, which is safe for concurrent use.
package loop

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// repeatAfter is how long the same trouble stays silent before it is logged again.
const repeatAfter = time.Minute

// Trouble logs what goes wrong once when it begins, once when it turns into something else, now and then while it lasts,
// and once when it is over, however often it is tried and however often it comes and goes.
type Trouble struct {
	log obs.Logger

	mu   sync.Mutex
	last map[string]lastTrouble
}

type lastTrouble struct {
	message string
	at      time.Time // when it was logged
	lasts   bool
	logged  bool // the trouble that lasts was logged, so its end will be
}

// NewTrouble returns one that has logged nothing yet.
func NewTrouble(log obs.Logger) *Trouble {
	return &Trouble{log: log, last: map[string]lastTrouble{}}
}

// Report records trouble with one thing.
func (t *Trouble) Report(key, message string, err error) {
	fields := obs.Fields{obs.Error: err, obs.Key: key}
	if reason := denied(err); reason != "" {
		fields[obs.Reason] = reason
		message += ": " + reason
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.last[key]
	if last.message == message && time.Since(last.at) < repeatAfter {
		last.lasts = true
		t.last[key] = last
		return
	}
	t.last[key] = lastTrouble{message: message, at: time.Now(), lasts: true, logged: true}
	t.log.WithFields(fields).Warn(message)
}

// Over records that the thing works.
func (t *Trouble) Over(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.last[key]
	if !last.lasts {
		return
	}
	if last.logged {
		t.log.WithField(obs.Key, key).Info("works again")
	}
	last.lasts, last.logged = false, false
	t.last[key] = last
}

// Saw records whether something works, and returns whether it does not.
func (t *Trouble) Saw(key, message string, err error) (failed bool) {
	if err == nil {
		t.Over(key)
	} else {
		t.Report(key, message, err)
	}
	return err != nil
}

// Failed is Saw, but for what fails because ctx has ended, which says nothing.
func (t *Trouble) Failed(ctx context.Context, key, message string, err error) bool {
	if err != nil && ctx.Err() != nil {
		return true
	}
	return t.Saw(key, message, err)
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
