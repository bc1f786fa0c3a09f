package container_test

import (
	"encoding/json"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/container"
)

// FuzzLookup reads hostile files of accounts. A user that is found has the number that the text names, or is in the
// file.
func FuzzLookup(f *testing.F) {
	f.Add(passwd, group, "www-data")
	f.Add(passwd, group, "33:ssl")
	f.Add("a:x:1:2:::\n", "b:x:3:a,a,,\n", "a")
	f.Add("a:x:1:2:::\n", "", "4294967295")
	f.Fuzz(func(t *testing.T, passwd, group, text string) {
		accounts := container.Accounts{Passwd: []byte(passwd), Group: []byte(group)}
		who, err := accounts.Lookup(text)
		if err != nil {
			if err.Error() == "" || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q", err)
			}
			return
		}
		const none = 1<<32 - 1
		if !strings.HasPrefix(who.Home, "/") || who.UID == none || who.GID == none || len(who.Groups) > 1024 {
			t.Errorf("%q: %+v", text, who)
		}
		for i, gid := range who.Groups {
			if gid == none || gid == who.GID || i > 0 && gid <= who.Groups[i-1] {
				t.Errorf("%q: groups %d", text, who.Groups)
			}
		}
		if again, err := accounts.Lookup(text); err != nil || again.UID != who.UID || again.GID != who.GID {
			t.Errorf("%q: %+v, then %+v, %v", text, who, again, err)
		}
	})
}

// FuzzBuild makes configurations from hostile images and manifests. Each is refused, or keeps all promises.
func FuzzBuild(f *testing.F) {
	add := func(change func(*container.Input)) {
		in := input()
		change(&in)
		image, err := json.Marshal(in.Image)
		if err != nil {
			f.Fatal(err)
		}
		ask, err := json.Marshal(in.Ask)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(image, ask, string(in.Files.Accounts.Passwd), string(in.Files.Accounts.Group), "", "", true, true)
		f.Add(image, ask, string(in.Files.Accounts.Passwd), string(in.Files.Accounts.Group), "/data",
			"/dev", false, false)
	}
	add(func(*container.Input) {})
	add(func(in *container.Input) {
		in.Image.Config.User, in.Image.Config.Volumes = "www-data", map[string]struct{}{"/data": {}, "/spool": {}}
		in.Ask = container.Ask{
			Command: "run", Args: []string{"a"}, Env: map[string]string{"A": "b"}, WorkDir: "/w", User: "root",
			Volumes: []container.Volume{{Path: "/data", Source: "/v", ReadOnly: true}},
			Tmpfs:   []container.Tmpfs{{Path: "/tmp", Size: 1 << 20}}, ShmSize: 1 << 20, ReadOnlyRoot: true,
			Capabilities: container.Capabilities{Add: []string{"NET_RAW"}, Drop: []string{"ALL"}}, Init: true,
		}
	})
	f.Fuzz(func(t *testing.T, image, ask []byte, passwd, group, from, link string, idmap, allowRoot bool) {
		in := input()
		in.Image, in.Ask = imagespec.Image{}, container.Ask{}
		_ = json.Unmarshal(image, &in.Image) // what can be read of it
		_ = json.Unmarshal(ask, &in.Ask)
		in.Files.Accounts = container.Accounts{Passwd: []byte(passwd), Group: []byte(group)}
		in.Node.Capabilities, in.Node.AllowRoot = []string{"NET_RAW", "SYS_TIME"}, allowRoot
		in.Node.Scratch = map[string]string{"/spool": "/s/0"}
		if !idmap {
			in.Node.IDs, in.Node.Number = nil, 5000
		}
		if len(link) > 0 {
			in.Files.Places = map[string]string{from: link}
		}
		withoutLinks(&in)
		made, err := container.Build(in)
		if err != nil {
			if made != nil || !strings.Contains(err.Error(), "allowed: ") {
				t.Errorf("an error that does not say what is allowed: %v", err)
			}
			return
		}
		if mistake := check(made, in.Node); mistake != "" {
			t.Error(mistake)
		}
		for _, name := range made.Spec.Process.Capabilities.Bounding {
			allowed := strings.Join(append(container.RootCapabilities(), "CAP_NET_RAW", "CAP_SYS_TIME"), " ")
			if !strings.Contains(allowed, name) {
				t.Errorf("capability %s", name)
			}
		}
	})
}
