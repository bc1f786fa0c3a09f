package farm_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// An operator's request to a rollout is carried out although the passes over one of its controllers fail.
func TestRollingWhilePassesFail(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	proxy := consultest.StartProxy(t, s.addr)
	s.rollingFarm("f", proxy.Addr, nil)
	s.first(2)
	pods := []byte(`"` + s.store.Keys().Pods.Key(rolled2) + `/`)
	proxy.Set(func(r *http.Request) consultest.Verdict {
		if r.URL.Path != "/v1/txn" {
			return consultest.Forward
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, pods) {
			return consultest.CutBefore
		}
		return consultest.Forward
	})
	s.deploy(2, 2, nil)
	s.rolling(func(r *rollout.Record) bool { return r.Phase == rollout.Moving })
	s.request(rollout.AbortVerb)
	s.ended(2, rollout.Aborted)
	proxy.Set(nil)
}
