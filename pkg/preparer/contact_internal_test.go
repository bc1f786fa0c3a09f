package preparer

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMayRun(t *testing.T) {
	const after = 10 * time.Second
	for name, tt := range map[string]struct {
		touch
		want bool
	}{
		"all is well": {touch{serving: true, agreed: true, running: true}, true},
		"a new pod":   {touch{serving: true, agreed: true}, true},
		"in touch, intents not read yet, it runs": {touch{serving: true, running: true, silence: never, unread: never}, true},
		"in touch, intents not read yet":          {touch{serving: true, unread: never}, false},
		"in touch, its intent is not there":       {touch{serving: true}, false},
		"in touch again soon enough":              {touch{serving: true, agreed: true, unread: after - 1}, true},
		"in touch again, not read again":          {touch{serving: true, agreed: true, unread: after}, false},
		"silence, not long enough":                {touch{running: true, silence: after - 1, unread: never, started: never}, true},
		"silence, long enough":                    {touch{running: true, silence: after, started: after}, false},
		"silence since before this start":         {touch{running: true, silence: after, started: startGrace - 1}, true},
		"and Consul is still not there":           {touch{running: true, silence: after, started: startGrace}, false},
		"the note is lost, it runs":               {touch{running: true, silence: never, started: after - 1}, true},
		"the note is lost for long, it runs":      {touch{running: true, silence: never, started: after}, false},
		"crashed in the silence":                  {touch{agreed: true, silence: after - 1, unread: after - 1, started: never}, true},
		"crashed, and it had no intent":           {touch{silence: after - 1, unread: after - 1, started: never}, false},
		"stopped by the silence":                  {touch{agreed: true, silence: after, unread: after, started: never}, false},
		"rebooted without Consul":                 {touch{silence: never, unread: never, started: 1}, false},
		"the name is lost":                        {touch{lost: true, serving: true, agreed: true, running: true}, false},
		"stopped for that, the intent says run":   {touch{waits: true, serving: true, agreed: true}, true},
		"stopped for that, the intents not known": {touch{waits: true, agreed: true, unread: 1}, false},
		"stopped for that, no intent":             {touch{waits: true, serving: true}, false},
		"the name is back before it was stopped":  {touch{waits: true, serving: true, running: true}, true},
	} {
		if got := tt.mayRun(after); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestMomentsOfOneBoot(t *testing.T) {
	a := Moment{Boot: "a", Up: time.Second}
	for _, tt := range []struct {
		earlier, later Moment
		want           time.Duration
	}{
		{a, Moment{Boot: "a", Up: 3 * time.Second}, 2 * time.Second},
		{a, Moment{Boot: "b", Up: 3 * time.Second}, never},
		{a, Moment{Boot: "a"}, 0},
		{Moment{}, a, never},
	} {
		if got := tt.later.since(tt.earlier); got != tt.want {
			t.Errorf("from %v to %v: %s, want %s", tt.earlier, tt.later, got, tt.want)
		}
	}
}

func TestNoteOfContactThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, contactFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := openContact(dir, nil)
	if err != nil || c.last != (Moment{}) || c.started.Boot == "" {
		t.Errorf("%+v, %v; want no last contact", c, err)
	}
}
