package rcctl

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// A deployment is refused, with the reason, if somebody else sets the domain meanwhile. It is not refused if the
// document names the host. Scaling is not refused either.
func TestADomainThatIsSetMeanwhile(t *testing.T) {
	proxy := consultest.StartProxy(t, consultest.Shared(t).Addr)
	const plain = `{"name": "web", "replicas": 1, "pod": {"version": 1, "id": "web", "launchables": [
		{"name": "a", "artifact": {"kind": "exec", "path": "/bin/true"}}]}}`
	own := strings.Replace(plain, `"id": "web",`, `"id": "web", "service": {"meta": {"host": "own.example"}},`, 1)
	for name, tt := range map[string]struct {
		document string
		before   bool // the service exists before
		args     []string
		code     int
	}{
		"a first deploy": {plain, false, []string{"deploy", "-f", "-", "--yes", "--detach"}, exitRefused},
		"a deploy": {
			strings.Replace(plain, "true", "false", 1), true,
			[]string{"deploy", "-f", "-", "--yes", "--detach"},
			exitRefused,
		},
		"a host name it has": {own, false, []string{"deploy", "-f", "-", "--yes", "--detach"}, exitDone},
		"more replicas":      {"", true, []string{"scale", "web", "3", "--yes", "--detach"}, exitDone},
	} {
		t.Run(name, func(t *testing.T) {
			s, prefix := testConn(t)
			const epoch = `"nonce":"01arz3ndektsv4rrffq69g5fav"`
			putRecord(t, s, s.Keys().Schema.Key(), `{"format_version":2,`+epoch+`}`)
			node := `{"name":"n1","capacity":{"slots":10},` + epoch + `}`
			if err := putHeld(consultest.Shared(t).Addr, s.Keys().Nodes.Key("n1"), node); err != nil {
				t.Fatal(err)
			}
			if tt.before {
				if code, out, errs := run(t, prefix, plain, "deploy", "-f", "-", "--yes",
					"--detach"); code != exitDone {
					t.Fatal(out, errs)
				}
			}
			var once sync.Once
			proxy.Set(func(r *http.Request) consultest.Verdict {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				if r.URL.Path == "/v1/txn" && strings.Contains(string(body), `"`+prefix+"audit/") {
					once.Do(func() { putRecord(t, s, s.Keys().Settings.Key(), `{"domain":"new.example"}`) })
				}
				return consultest.Forward
			})
			code, out, errs := runAt(t.Context(), proxy.Addr, prefix, tt.document, tt.args...)
			if code != tt.code {
				t.Errorf("exit code %d, want %d\n%s%s", code, tt.code, out, errs)
			}
			const says = "the cluster's domain changed since the plan was made; nothing was written, plan again\n"
			if told := strings.Contains(errs, says); told != (tt.code == exitRefused) {
				t.Errorf("it says %s", errs)
			}
			pairs, err := s.consul.List(t.Context(), s.Keys().Deployed.Key(), consul.Consistent)
			if written := len(pairs) > 0; err != nil || written != (tt.before || tt.code == exitDone) {
				t.Errorf("of the service there are %d records, %v", len(pairs), err)
			}
		})
	}
}
