package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// keeps checks until end that at least low pods of the service answer, and at most high processes run.
func (e *env) keeps(low, high int) (end func()) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	var looks int
	var wrong []string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for short := false; ctx.Err() == nil; looks++ {
			running, err := e.scan()
			answer := e.healthy(running)
			// A process may have ended since scan found it, so one short look proves nothing.
			if again := short; err == nil && answer < low {
				short, err = true, nil
				if !again {
					continue
				}
				err = fmt.Errorf("%d pods answer, want at least %d; running: %v", answer, low, running)
			}
			short = false
			if err == nil && len(running) > high {
				err = fmt.Errorf("%d processes, want at most %d: %v", len(running), high, running)
			}
			if err != nil {
				wrong = append(wrong, time.Now().UTC().Format("15:04:05.000 ")+err.Error())
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	stop := sync.OnceFunc(func() { cancel(); <-ended })
	e.t.Cleanup(stop)
	return func() {
		e.t.Helper()
		stop()
		if len(wrong) > 0 {
			e.t.Errorf("%d of %d looks: %.1500q", len(wrong), looks, wrong)
		}
	}
}

func (e *env) healthy(running map[string]int) (n int) {
	client := http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, pid := range running {
		vars := environOf(pid)
		resp, err := client.Get("http://" + net.JoinHostPort(vars["NODE_ADDRESS"], vars["PORT_HTTP"]) + "/health")
		if err != nil {
			continue // it has not begun to listen, or has ended
		}
		_ = resp.Body.Close() // nothing is read from it
		if resp.StatusCode == http.StatusOK {
			n++
		}
	}
	return n
}

// ownerOfWeb waits until a farm other than besides owns the service.
func (e *env) ownerOfWeb(besides ...string) (farm string) {
	e.t.Helper()
	e.within(limit, func() error {
		deployed, err := e.store.Deployed.Get(e.t.Context(), store.Consistent, "web")
		if err != nil {
			return err
		}
		farm, err = e.store.Deployments.OwnerOf(e.t.Context(), deployed.Value.ID)
		if err == nil && (farm == "" || slices.Contains(besides, farm)) {
			err = fmt.Errorf("farm %q owns the service", farm)
		}
		return err
	})
	return farm
}

// ownerKilled: in every stage of a rollout the owner of the service is killed. Another farm takes the service over, and
// continues the rollout.
func ownerKilled(e *env) {
	farms := e.site(2, 2)
	w := web{replicas: 3, version: "1", update: "step: 3"}
	e.deployed(w)
	end := e.keeps(3, 4)
	w.version, w.update = "2", "step: 1"
	e.detached(w)
	killed := map[int]string{}
	for stage := 1; stage <= 3; stage++ {
		e.awaitRollout(fmt.Sprintf("is in stage %d", stage), func(r *rollout.Record) bool {
			return r != nil && r.Stage >= stage
		})
		owner := e.ownerOfWeb()
		if stage == 1 {
			e.mustSay([]string{"OWNER", " " + owner + " "}, "rollout", "list")
			e.mustSay([]string{`"owner": "` + owner + `"`}, "rollout", "list", "-o", "json")
		}
		farms[owner].kill()
		if r := e.rollout(); r != nil {
			killed[r.Stage] = owner
		}
		if next := e.ownerOfWeb(owner); farms[next] == nil {
			e.t.Fatalf("the next owner is %q", next)
		}
		farms[owner].startAgain()
	}
	e.awaitEnd()
	e.runs(map[string]int{"2": 3})
	end()
	if len(killed) != 3 {
		e.t.Errorf("killed by stage: %v, want an owner in each of 3 stages", killed)
	}
	e.oneCopyEach()
}

// noRoom: each node has capacity for only one pod. A rollout that needs capacity for one more pod is refused at once,
// and rcctl prints the strategies that need no more capacity. Without --strategy, rcctl uses one of these.
func noRoom(e *env) {
	e.site(2, 1)
	w := web{replicas: 2, version: "1", port: 8080}
	e.deployed(w)
	before := e.processes()
	w.version, w.update = "2", "step: 1"
	for _, command := range [][]string{{"plan"}, {"deploy", "--yes"}} {
		out, err := e.tryRcctl(e.document(w), append(command, "-f", "-", "--strategy", "availability")...)
		for _, text := range []string{"exit status 4", "no-room", "room for 0", "resourceutil", "in-place"} {
			if err == nil || !strings.Contains(err.Error(), text) {
				e.t.Errorf("rcctl %s does not say %q: %v\n%s", command[0], text, err, out)
			}
		}
	}
	e.sameProcesses(before, "refused")
	if r := e.rollout(); r != nil {
		e.t.Errorf("a rollout that was refused has begun: %+v", r)
	}
	e.deployed(w)
}

// retarget: a rollout under way gets another target. The pods of the abandoned revision stop before more pods of the
// old revision stop.
func retarget(e *env) {
	e.site(2, 1)
	w := web{replicas: 3, version: "1", update: "step: 3"}
	e.deployed(w)
	end := e.keeps(3, 4)
	w.version, w.update = "2", "step: 1"
	e.detached(w)
	e.awaitRollout("has moved a pod", func(r *rollout.Record) bool { return r != nil && r.Stage >= 2 })
	w.version = "3"
	e.detached(w)
	r := e.rollout()
	if r == nil || len(r.Revisions) != 3 || !r.Revisions[1].Abandoned {
		e.t.Fatalf("the rollout is %+v, want one of three revisions with the second given up", r)
	}
	old := e.versions()["1"]
	e.within(limit, func() error {
		switch seen := e.versions(); {
		case seen["1"] < old && seen["2"] > 0:
			e.t.Fatalf(
				"processes of versions %v: the revision that was given up is there, and the old one has shrunk from %d",
				seen, old)
		case seen["2"] > 0:
			return fmt.Errorf("processes of versions %v: the revision that was given up is there", seen)
		}
		return nil
	})
	e.awaitEnd()
	e.runs(map[string]int{"3": 3})
	end()
}

// restoreRollout: an older state is restored in the middle of a rollout. The rollout waits, and pods are kept as
// adopted: no pod stops, and no pod is placed beside them. When the rollout is aborted, the next deployment takes the
// service to one revision.
func restoreRollout(e *env) {
	e.site(3, 1)
	w := web{replicas: 3, version: "1", update: "step: 3"}
	e.deployed(w)
	end := e.keeps(3, 4)
	w.version, w.update = "2", "step: 1"
	e.detached(w)
	e.awaitRollout("is in its first stage", func(r *rollout.Record) bool { return r != nil && r.Stage == 1 })
	snapshot := e.request(http.MethodGet, "/v1/snapshot", nil)
	e.awaitRollout("is in its third stage", func(r *rollout.Record) bool { return r != nil && r.Stage >= 3 })
	e.put("/v1/snapshot", snapshot)
	e.awaitRollout("waits for somebody to say what becomes of the pods", func(r *rollout.Record) bool {
		return r != nil && strings.Contains(r.BlockedReason, "abort, or resume")
	})
	found := e.processes()
	e.mustSay([]string{"went back in time", "abort, or resume"}, "rollout", "status", "web")
	e.sameProcesses(found, "the rollout waits")
	e.rcctl("", "rollout", "abort", "web")
	e.awaitEnd()
	e.sameProcesses(found, "the rollout was aborted")
	w.version = "3"
	e.deployed(w)
	end()
	e.oneCopyEach()
}
