package rcctl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/feature"
)

// If a request to label a pod is gone, and the pod has the labels, the request was carried out. After a restore, the
// request can be gone although the pod does not have the labels.
func TestALabelIsThereOnceTheRequestIsGone(t *testing.T) {
	const placed = `{"rc_id":"webid","role":"main","index":0,"node":"n1","pod_id":"web",` +
		`"digest":"0123456789abcdef000000000000000000000000000000000000000000000000","run_state":"running","revision":7,"labels":{"app":"shop"%s}%s}`
	for name, tt := range map[string]struct {
		pod  string // record of the pod when the request is removed; empty: the pod has no record
		code int
		says string
	}{
		"the owner has done it": {
			fmt.Sprintf(placed, `,"x":"1"`, `,"own_labels":{"x":"1"}`), exitDone,
			"web-main-0 on n1 is labelled",
		},
		"the records went back": {
			fmt.Sprintf(placed, `,"y":"2"`, `,"own_labels":{"y":"2"}`), exitWait,
			"the request is gone, and these labels are not as requested: x, y;",
		},
		"the pod is gone": {"", exitWait, "the request is gone, and the pod is gone or was moved"},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: the package for command lines has global flags
			s, prefix := testConn(t)
			keys := s.Keys()
			putRecord(t, s, keys.RCs.Key("webid"),
				`{"id":"webid","name":"web","manifest":"d","replica_groups":[{"role":"main","count":1}]}`)
			at := keys.Pods.Key("webid/main.0")
			putRecord(t, s, at, fmt.Sprintf(placed, `,"y":"2"`, `,"own_labels":{"y":"2"}`))
			putRecord(t, s, keys.Gate.Key(), fmt.Sprintf(`{"version":%q}`, feature.Known.Newest()))
			var out, errs sharedText
			ended := make(chan int)
			go func() {
				ended <- Main(context.Background(), []string{
					"rcctl", "--consul-addr", consultest.Shared(t).Addr, "--prefix", prefix, "label", "pod",
					"web-main-0", "x=1", "y-", "--wait", "--timeout", "1m",
				}, nil, &out, &errs)
			}()
			var request string
			consultest.Eventually(t, time.Minute, func() error {
				for _, key := range keysBelow(t, s.consul, prefix) {
					if strings.Contains(key, "requests/webid/") {
						request = key
					}
				}
				if request == "" || !strings.Contains(errs.String(), "waiting for its owner") {
					return errors.New(out.String() + errs.String())
				}
				return nil
			})
			change := consul.Set(at, []byte(tt.pod))
			if tt.pod == "" {
				change = consul.Delete(at)
			}
			if _, err := s.consul.Commit(t.Context(), []consul.Op{change, consul.Delete(request)}); err != nil {
				t.Fatal(err)
			}
			if code := <-ended; code != tt.code || !strings.Contains(out.String()+errs.String(), tt.says) {
				t.Errorf("exit code %d, want %d\n%s\n%s", code, tt.code, out.String(), errs.String())
			}
		})
	}
}
