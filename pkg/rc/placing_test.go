package rc_test

import (
	"encoding/json"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A record without a skew stays as older farms read and write it; each form is read back as it was.
func TestSpreadAsJSON(t *testing.T) {
	for want, s := range map[string]rc.Spread{
		`"rack"`: {Label: "rack"},
		`{"label":"rack","skew":2,"when":"require"}`: {Label: "rack", Skew: 2, When: rc.Require},
		`{"label":"rack","when":"prefer"}`:           {Label: "rack", When: rc.Prefer},
	} {
		data, err := json.Marshal(s)
		if err != nil || string(data) != want {
			t.Errorf("%+v: %s, %v; want %s", s, data, err, want)
		}
		var back rc.Spread
		if err := json.Unmarshal(data, &back); err != nil || back != s {
			t.Errorf("%s: %+v, %v", data, back, err)
		}
	}
	r := rc.RC{}
	if data, err := json.Marshal(r); err != nil || string(data) == "" || json.Unmarshal(data, &r) != nil || !r.Spread.IsZero() {
		t.Errorf("%s, %v", data, err)
	}
	for s, held := range map[rc.Spread]int{{Label: "a"}: 0, {Label: "a", Skew: 3}: 0, {Label: "a", When: rc.Require}: 1, {Label: "a", Skew: 3, When: rc.Require}: 3} {
		if s.Held() != held {
			t.Errorf("%+v holds %d", s, s.Held())
		}
	}
}
