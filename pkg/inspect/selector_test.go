package inspect

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

func TestSelected(t *testing.T) {
	t.Parallel()
	views := func() []PodView {
		return []PodView{
			{Name: "web-main-0", RCID: "a", PodID: "web", Labels: map[string]string{"app": "web", "tier": "front"}},
			{Name: "db-main-0", RCID: "b", PodID: "db", Labels: map[string]string{"app": "db"}},
			{Name: "main-4", RCID: "c", Kind: Orphan},
		}
	}
	for text, want := range map[string]string{
		"":                                   "web-main-0 db-main-0 main-4 ",
		"app=web":                            "web-main-0 ",
		"app in (web,db),!tier":              "db-main-0 ",
		"app!=web":                           "db-main-0 main-4 ",
		"pod_id=db":                          "db-main-0 ",
		"pod_id":                             "web-main-0 db-main-0 ",
		"replication_controller_id=c":        "main-4 ",
		"replication_controller_id=a,app=db": "",
	} {
		sel, err := rc.ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, v := range Selected(views(), sel, (*PodView).LabelSet) {
			got += v.Name + " "
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// A key that no object has explains why a selector selects nothing. A requirement that is also met without the key does
// not explain it.
func TestLabelsLacking(t *testing.T) {
	t.Parallel()
	sets := []map[string]string{{"app": "web", "tier": "front"}, {"app": "db"}, nil}
	for text, want := range map[string]string{
		"":                             "",
		"app=api":                      "",
		"service=web":                  "service",
		"service,app=web":              "service",
		"zone in (a),service,tier":     "service zone",
		"zone>3":                       "zone",
		"!zone,zone!=b,zone notin (c)": "",
	} {
		sel, err := rc.ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		lacking, keys := LabelsLacking(sel, sets)
		if got := strings.Join(lacking, " "); got != want || strings.Join(keys, " ") != "app tier" {
			t.Errorf("%s: %q, want %q; keys %v", text, got, want, keys)
		}
	}
}
