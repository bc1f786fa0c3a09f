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
		"in touch, intents not read yet, it runs": {Connectivity{Serving: true, Running: true, Silence: proc.Never, Unread: proc.Never}, true},
		"in touch, intents not read yet":          {Connectivity{Serving: true, Unread: proc.Never}, false},
		"in touch, its intent is not there":       {Connectivity{Serving: true}, false},
		"in touch again soon enough":              {Connectivity{Serving: true, Agreed: true, Unread: after - 1}, true},
		"in touch again, not read again":          {Connectivity{Serving: true, Agreed: true, Unread: after}, false},
		"silence, not long enough":                {Connectivity{Running: true, Silence: after - 1, Unread: proc.Never, Started: proc.Never}, true},
		"silence, long enough":                    {Connectivity{Running: true, Silence: after, Started: after}, false},
		"silence since before this start":         {Connectivity{Running: true, Silence: after, Started: startGrace - 1}, true},
		"and Consul is still not there":           {Connectivity{Running: true, Silence: after, Started: startGrace}, false},
		"the note is lost, it runs":               {Connectivity{Running: true, Silence: proc.Never, Started: after - 1}, true},
		"the note is lost for long, it runs":      {Connectivity{Running: true, Silence: proc.Never, Started: after}, false},
		"crashed in the silence":                  {Connectivity{Agreed: true, Silence: after - 1, Unread: after - 1, Started: proc.Never}, true},
		"crashed, and it had no intent":           {Connectivity{Silence: after - 1, Unread: after - 1, Started: proc.Never}, false},
		"stopped by the silence":                  {Connectivity{Agreed: true, Silence: after, Unread: after, Started: proc.Never}, false},
		"rebooted without Consul":                 {Connectivity{Silence: proc.Never, Unread: proc.Never, Started: 1}, false},
		"the name is lost":                        {Connectivity{Lost: true, Serving: true, Agreed: true, Running: true}, false},
		"stopped for that, the intent says run":   {Connectivity{Waits: true, Serving: true, Agreed: true}, true},
		"stopped for that, the intents not known": {Connectivity{Waits: true, Agreed: true, Unread: 1}, false},
		"stopped for that, no intent":             {Connectivity{Waits: true, Serving: true}, false},
		"the name is back before it was stopped":  {Connectivity{Waits: true, Serving: true, Running: true}, true},
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
	c, err := OpenContact(dir, nil)
	if err != nil || c.last != (proc.Moment{}) || c.started.Boot == "" {
		t.Errorf("%+v, %v; want no last contact", c, err)
	}
}
