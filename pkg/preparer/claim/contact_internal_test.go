package claim

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

func TestMayRun(t *testing.T) {
	const after = 10 * time.Second
	for name, tt := range map[string]struct {
		Connectivity
		want bool
	}{
		"all is well": {Connectivity{Serving: true, Agreed: true, Running: true}, true},
		"a new pod":   {Connectivity{Serving: true, Agreed: true}, true},
		"in touch, intents not read yet, it runs": {Connectivity{
			Serving: true, Running: true, Silence: proc.Never,
			Unread: proc.Never,
		}, true},
		"in touch, intents not read yet":    {Connectivity{Serving: true, Unread: proc.Never}, false},
		"in touch, its intent is not there": {Connectivity{Serving: true}, false},
		"in touch again soon enough":        {Connectivity{Serving: true, Agreed: true, Unread: after - 1}, true},
		"in touch again, not read again":    {Connectivity{Serving: true, Agreed: true, Unread: after}, false},
		"silence, not long enough": {Connectivity{
			Running: true, Silence: after - 1, Unread: proc.Never,
			Started: proc.Never,
		}, true},
		"silence, long enough": {Connectivity{Running: true, Silence: after, Started: after}, false},
		"silence since before this start": {Connectivity{
			Running: true, Silence: after,
			Started: startGrace - 1,
		}, true},
		"and Consul is still not there": {
			Connectivity{Running: true, Silence: after, Started: startGrace},
			false,
		},
		"the note is lost, it runs": {Connectivity{
			Running: true, Silence: proc.Never,
			Started: after - 1,
		}, true},
		"the note is lost for long, it runs": {
			Connectivity{Running: true, Silence: proc.Never, Started: after},
			false,
		},
		"crashed in the silence": {Connectivity{
			Agreed: true, Silence: after - 1, Unread: after - 1,
			Started: proc.Never,
		}, true},
		"crashed, and it had no intent": {Connectivity{
			Silence: after - 1, Unread: after - 1,
			Started: proc.Never,
		}, false},
		"stopped by the silence": {Connectivity{
			Agreed: true, Silence: after, Unread: after,
			Started: proc.Never,
		}, false},
		"rebooted without Consul": {
			Connectivity{Silence: proc.Never, Unread: proc.Never, Started: 1},
			false,
		},
		"the name is lost": {Connectivity{
			Lost: true, Serving: true, Agreed: true,
			Running: true,
		}, false},
		"stopped for that, the intent says run":   {Connectivity{Waits: true, Serving: true, Agreed: true}, true},
		"stopped for that, the intents not known": {Connectivity{Waits: true, Agreed: true, Unread: 1}, false},
		"stopped for that, no intent":             {Connectivity{Waits: true, Serving: true}, false},
		"its intent is of another epoch":          {Connectivity{Outdated: true, Serving: true, Agreed: true}, false},
		"of another epoch, and it runs": {Connectivity{
			Outdated: true, Serving: true, Agreed: true,
			Running: true,
		}, true},
		"the name is back before it was stopped": {Connectivity{Waits: true, Serving: true, Running: true}, true},
	} {
		if got := tt.MayRun(after); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestNoteOfContactThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ContactFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := OpenContact(dir)
	if err != nil || c.last != (proc.Moment{}) || c.started.Boot == "" {
		t.Errorf("%+v, %v; want no last contact", c, err)
	}
}

// A session counts as contact from when it has the node's lock, or from when farms have certainly seen that the agent
// lives. At that moment the note is due. After the session has had the lock, it counts until its end.
func TestContactOfASessionWithoutTheLock(t *testing.T) {
	c, err := OpenContact(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	left := func() time.Duration { return time.Second }
	begin := func() (now, before proc.Moment) {
		t.Helper()
		if now, err = proc.Now(); err != nil {
			t.Fatal(err)
		}
		before = proc.Moment{Boot: now.Boot, Up: now.Up - time.Minute}
		c.SetLocked(false)
		c.last = before
		c.Begin(func() time.Duration { return left() })
		c.SetServing(true)
		return now, before
	}
	now, before := begin()
	if conn := c.Connectivity(now); conn.Serving || c.last != before {
		t.Errorf("a session alone: %+v, last contact %+v", conn, c.last)
	}
	due, err := c.Note(now, time.Minute)
	if err != nil || due <= agentSeen-time.Second || due > agentSeen+time.Second {
		t.Errorf("the note is due in %s, %v; want when the session counts", due, err)
	}
	c.SetServing(false)
	if c.last != before {
		t.Errorf("the end of such a session: last contact %+v", c.last)
	}
	now, before = begin()
	later := now
	if later.Up += due + time.Second; !c.Connectivity(later).Serving || c.last == before {
		t.Errorf("a session that has lasted: %+v, last contact %+v", c.Connectivity(later), c.last)
	}
	now, before = begin()
	later, left = now, func() time.Duration { return due - time.Minute } // the session ended before that
	if later.Up += time.Minute; c.Connectivity(later).Serving || c.last != before {
		t.Errorf("a session that has not lasted, long ago: %+v, last contact %+v", c.Connectivity(later), c.last)
	}
	left = func() time.Duration { return time.Second }
	now, before = begin()
	c.SetLocked(true)
	if !c.Connectivity(now).Serving || c.last == before {
		t.Errorf("it has the lock: %+v, last contact %+v", c.Connectivity(now), c.last)
	}
	c.SetLocked(false)
	if c.last = before; !c.Connectivity(now).Serving || c.last == before {
		t.Errorf("it had the lock: %+v, last contact %+v", c.Connectivity(now), c.last)
	}
	if now, before = begin(); c.Connectivity(now).Serving || c.last != before {
		t.Errorf("the next session: %+v, last contact %+v", c.Connectivity(now), c.last)
	}
}

// A suspended preparer does not rely on its earlier state, whichever part continues first. It tries to reach Consul for
// a while.
func TestContactOfASuspendedPreparer(t *testing.T) {
	const after = 10 * time.Second
	for name, ends := range map[string]func(*Contact){
		"nothing has ended yet":  func(*Contact) {},
		"the lock was let go of": func(c *Contact) { c.SetLocked(false) },
		"the session has ended":  func(c *Contact) { c.SetServing(false); c.SetLocked(false) },
		"a note was written":     func(c *Contact) { _ = c.Keep() },
	} {
		c, err := OpenContact(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		left := time.Second
		c.Begin(func() time.Duration { return left })
		c.SetServing(true)
		c.SetLocked(true)
		c.Inform()
		c.started.Up -= time.Hour
		c.last.Up -= time.Hour
		now, err := proc.Now()
		if err != nil {
			t.Fatal(err)
		}
		stopped, runs := Connectivity{Agreed: true}, Connectivity{Agreed: true, Running: true}
		may := func(pod Connectivity) bool {
			conn := c.Connectivity(now)
			conn.Agreed, conn.Running = pod.Agreed, pod.Running
			return conn.MayRun(after)
		}
		if !may(stopped) || !may(runs) {
			t.Errorf("%s: in touch, they may run: %t, %t", name, may(stopped), may(runs))
		}
		left, c.last = -after-5*time.Second, proc.Moment{Boot: now.Boot, Up: now.Up - 20*time.Second}
		ends(c)
		if may(stopped) || !may(runs) {
			t.Errorf("%s: what was stopped may start: %t; what runs may run on for a while: %t", name,
				may(stopped), may(runs))
		}
		if got := now.Since(c.last); got < after || got > after+5*time.Second {
			t.Errorf("%s: the last contact was %s ago, want the end of the session", name, got)
		}
		now.Up += startGrace + time.Second
		if may(stopped) || may(runs) {
			t.Errorf("%s: and after that: %t, %t", name, may(stopped), may(runs))
		}
		left = time.Second
		c.SetServing(true)
		if may(stopped) == (name != "nothing has ended yet" && name != "a note was written") || !may(runs) {
			t.Errorf("%s: in touch again: %t, %t", name, may(stopped), may(runs))
		}
	}
}
