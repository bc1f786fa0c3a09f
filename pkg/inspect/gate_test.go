package inspect_test

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestGateView(t *testing.T) {
	t.Parallel()
	known := feature.Table{{Name: "a", Since: "0.2.0", What: "A"}, {Name: "b", Since: "0.3.0", What: "B"}}
	old := feature.Writer{Kind: "node", Name: "n1", Version: "0.1.0"}
	late := feature.Writer{Kind: "farm", Name: "f1", Version: "0.3.0", Emulates: "0.3.0"}
	v := inspect.NewGateView(store.Gate{Version: "0.2.0", By: "f1"}, known, []feature.Writer{late, old})
	if !v.Features[0].Allowed || v.Features[1].Allowed || v.By != "f1" || len(v.Behind) != 1 ||
		v.Behind[0] != (inspect.WriterView{Kind: "node", Name: "n1", Version: "0.1.0"}) {
		t.Errorf("%+v", v)
	}
	if got, want := v.Waiting(),
		"the version gate is 0.2.0; features that wait: 1, for 1 farms and nodes that are older, the oldest of them "+
			"node n1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	v = inspect.NewGateView(store.Gate{Version: feature.Oldest}, known, []feature.Writer{late})
	if got := v.Waiting(); !strings.HasPrefix(got, "the version gate is 0.0.0; features that wait: 2; all living") {
		t.Error(got)
	}
	v = inspect.NewGateView(store.Gate{Version: "0.3.0"}, known, []feature.Writer{late})
	if got := v.Waiting(); got != "" || v.Behind == nil {
		t.Errorf("%q, %v", got, v.Behind)
	}
}
