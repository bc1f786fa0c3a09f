package nodeapi

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Without a token a pod, which is another user of the machine, may not use the API; root and the preparer's own user may.
func TestWithoutATokenOthersAreRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	addr := n.listener.Addr().(*net.TCPAddr)
	script := fmt.Sprintf(`exec 3<>/dev/tcp/127.0.0.1/%d
printf 'POST /v1/nodes/n1/pods/rc1/main/2/exec HTTP/1.1\r\nHost: x\r\n%s: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n' >&3
head -n 20 <&3`, addr.Port, askHeader)
	ask := func(uid int) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
		cmd.Dir = "/"
		if uid != os.Geteuid() {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if answer := ask(os.Geteuid()); strings.Contains(answer, "403") || !strings.HasPrefix(answer, "HTTP/1.1 ") {
		t.Errorf("the preparer's own user is told: %s", answer)
	}
	if os.Geteuid() != 0 {
		return // nobody else can be played
	}
	if answer := ask(65534); !strings.HasPrefix(answer, fmt.Sprintf("HTTP/1.1 %d ", http.StatusForbidden)) || !strings.Contains(answer, "user 65534 asks") {
		t.Errorf("another user is told: %s", answer)
	}
}

func TestUIDIn(t *testing.T) {
	t.Parallel()
	from, to := netip.MustParseAddrPort("127.0.0.1:47244"), netip.MustParseAddrPort("127.0.0.1:8080")
	const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(state, uid string) string {
		return "   3: 0100007F:B88C 0100007F:1F90 " + state + " 00000000:00000000 00:00000000 00000000 " + uid + "        0 84 1 0 20 4 30 10 -1\n"
	}
	const other = "   2: 0100007F:1F90 0100007F:B88C 01 00000000:00000000 00:00000000 00000000     0        0 83 1 0 20 4 30 10 -1\n"
	if uid, err := uidIn(strings.NewReader(heading+other+line("01", "1007")), from, to); uid != 1007 || err != nil {
		t.Errorf("%d, %v", uid, err)
	}
	// One that is closing is listed under root; so it is not trusted.
	if uid, err := uidIn(strings.NewReader(heading+line("05", "0")), from, to); !errors.Is(err, errNoPeer) {
		t.Errorf("%d, %v", uid, err)
	}
	const v6 = "   0: 0000000000000000FFFF00000100007F:B88C 0000000000000000FFFF00000100007F:1F90 01 00000000:00000000 00:00000000 00000000  1008        0 85 1 0 20 4 30 10 -1\n"
	if uid, err := uidIn(strings.NewReader(v6), from, to); uid != 1008 || err != nil {
		t.Errorf("%d, %v", uid, err)
	}
}
