package manifest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

const isNot = " is not valid; allowed: "

// imageMistakes are mistakes in the manifest allImage.
func imageMistakes() []mistake {
	const (
		ref = `"r.example:5000/team/web:1.2@sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"`
		at  = "launchables[0].artifact."

		form     = "registry/name:tag@sha256:digest; the tag may be missing"
		parsed   = "registry/name:tag@sha256:digest, with a tag, a digest or both; here: "
		platform = "linux/architecture or linux/architecture/variant, such as linux/arm64; here: "
		program  = "a program of the image: an absolute path such as /usr/bin/web, or a name that PATH finds"
		absolute = "an absolute path such as /opt/web/run, without '.', '..', empty parts and control characters"
		user     = "an account of the image or a user id from 1 to 4294967294, alone or with its group: web, 33 or " +
			"web:www; in quotes if it is a number; user 0 only as root"
		place = "an absolute path in the container such as /var/lib/web, without '.', '..' and empty parts, not /etc " +
			"and outside /proc, /sys and /dev"
		size   = "bytes, from 4096 to 1125899906842624"
		name   = "a name of capabilities(7), such as NET_BIND_SERVICE"
		beside = "nothing: server has an image, and no programs run beside a container yet"
	)
	of := func(where, value, allowed string) string { return where + ": " + value + isNot + allowed }
	return []mistake{
		{name: "an image"},
		{name: "no ref", old: ref, new: `""`, want: at + "ref: missing; allowed: " + form},
		{
			name: "no digest", old: "@sha256:" + strings.Repeat("c", 64),
			want: of(at+"ref", `"r.example:5000/team/web:1.2"`,
				form+": a manifest names the digest, because a tag can move. rcctl deploy finds it"),
		},
		{name: "no tag", old: ":1.2@", new: "@"},
		{
			name: "no registry", old: "r.example:5000/",
			want: of(at+"ref", `"team/web:1.2@sha256:`+strings.Repeat("c", 60)+`..."`, parsed+"it names no registry"),
		},
		{
			name: "short digest", old: "cccc", new: "ccc",
			want: of(at+"ref", `"r.example:5000/team/web:1.2@sha256:`+strings.Repeat("c", 45)+`..."`,
				"sha256: and 64 hexadecimal digits in lower case; here: bad digest"),
		},
		{
			name: "a platform without a slash", old: "linux/arm/v7", new: "arm",
			want: of(at+"platform", `"arm"`, platform+"not a platform"),
		},
		{
			name: "another system", old: "linux/arm/v7", new: "windows/amd64",
			want: of(at+"platform", `"windows/amd64"`, platform+"another operating system"),
		},
		{
			name: "an image with fields of others", old: `"kind":"image",`,
			new: `"kind":"image","url":"file:///a","sha256":"` + strings.Repeat("a", 64) + `","path":"/a",`,
			want: of(at+"url", `"file:///a"`, "nothing: an image has a ref") + "\n" +
				of(at+"sha256", `"`+strings.Repeat("a", 64)+`"`, "nothing: an image has a ref") + "\n" +
				of(at+"path", `"/a"`, "nothing: an image has a ref"),
		},
		{name: "a program of PATH", old: "/usr/bin/web", new: "web"},
		{name: "no program", old: "/usr/bin/web"},
		{
			name: "a relative program", old: "/usr/bin/web", new: "bin/web",
			want: of("launchables[0].command", `"bin/web"`, program),
		},
		{
			name: "a program that climbs", old: "/usr/bin/web", new: "/usr/../web",
			want: of("launchables[0].command", `"/usr/../web"`, program),
		},
		{name: "a number", old: "web:33", new: "1000"},
		{name: "the group root", old: "web:33", new: "web:0"},
		{name: "root in a container", old: "web:33", new: "root"},
		{name: "user 0 in a container", old: "web:33", new: "0", want: of("launchables[0].user", `"0"`, user)},
		{name: "no group", old: "web:33", new: "web:", want: of("launchables[0].user", `"web:"`, user)},
		{name: "two groups", old: "web:33", new: "web:a:b", want: of("launchables[0].user", `"web:a:b"`, user)},
		{
			name: "group that means none", old: "web:33", new: "web:4294967295",
			want: of("launchables[0].user", `"web:4294967295"`, user),
		},
		{
			name: "a relative directory", old: `"/srv"`, new: `"srv"`,
			want: of("launchables[0].work_dir", `"srv"`, absolute),
		},
		{
			name: "a name in place of a path", old: `"/tmp"`, new: `"tmp"`,
			want: of("launchables[0].tmpfs[0].path", `"tmp"`, place),
		},
		{
			name: "no path in memory", old: `"/tmp"`, new: `""`,
			want: "launchables[0].tmpfs[0].path: missing; allowed: " + place,
		},
		{
			name: "the kernel's files", old: `"/tmp"`, new: `"/proc/x"`,
			want: of("launchables[0].tmpfs[0].path", `"/proc/x"`, place),
		},
		{
			name: "the configuration", old: `"/tmp"`, new: `"/etc"`,
			want: of("launchables[0].tmpfs[0].path", `"/etc"`, place),
		},
		{
			name: "in memory at a volume", old: `"/tmp"`, new: `"/data"`,
			want: of("launchables[0].tmpfs[0].path", `"/data"`, "a path that is not at or below /data of volumes[0].path"),
		},
		{
			name: "in memory below a volume", old: `"/tmp"`, new: `"/data/a"`,
			want: of("launchables[0].tmpfs[0].path", `"/data/a"`,
				"a path that is not at or below /data of volumes[0].path"),
		},
		{name: "a volume below memory", old: `"/data"`, new: `"/run/data"`},
		{
			name: "in memory twice", old: `"/run"`, new: `"/tmp"`,
			want: of("launchables[0].tmpfs[1].path", `"/tmp"`,
				"a path that is not at or below /tmp of launchables[0].tmpfs[0].path"),
		},
		{name: "less than a page", old: "1048576", new: "4095", want: of("launchables[0].tmpfs[0].size", "4095", size)},
		{name: "too much memory", old: `"shm_size":4096`, new: `"shm_size":"1Pi"`},
		{
			name: "much too much memory", old: `"shm_size":4096`, new: `"shm_size":2251799813685248`,
			want: of("launchables[0].shm_size", "2251799813685248", size),
		},
		{name: "a capability with CAP_", old: "NET_RAW", new: "CAP_NET_RAW"},
		{
			name: "no capability", old: "NET_RAW", new: "net_raw",
			want: of("launchables[0].capabilities.add[0]", `"net_raw"`, name),
		},
		{
			name: "unknown capability", old: "NET_RAW", new: "NET_ROW",
			want: of("launchables[0].capabilities.add[0]", `"NET_ROW"`, name),
		},
		{
			name: "all capabilities", old: "NET_RAW", new: "ALL",
			want: of("launchables[0].capabilities.add[0]", `"ALL"`, name),
		},
		{
			name: "no capability to drop", old: `"ALL"`, new: `"all"`,
			want: of("launchables[0].capabilities.drop[0]", `"all"`, name+", or ALL"),
		},
		{
			name: "a capability twice", old: `"NET_RAW"`, new: `"NET_RAW","CAP_NET_RAW"`,
			want: of("launchables[0].capabilities.add[1]", `"CAP_NET_RAW"`, "a value that no other entry has"),
		},
		{
			name: "a check in an image", old: `"probe","path":"/usr/bin/check"`, new: `"server","path":"/usr/bin/check"`,
			want: of("health.script.path", `"/usr/bin/check"`, beside),
		},
		{
			name: "a hook in an image", old: `"probe","path":"/usr/bin/drain"`, new: `"server","path":"/usr/bin/drain"`,
			want: of("hooks.before_stop.path", `"/usr/bin/drain"`, beside),
		},
		{name: "a volume without a path", old: `,"path":"/data"`, want: "volumes[0].path: missing; allowed: " + place},
		{
			name: "a volume that climbs", old: `"/data"`, new: `"/a/../data"`,
			want: of("volumes[0].path", `"/a/../data"`, place),
		},
		{
			name: "a volume in a volume", old: `"read_only":true}`, new: `"read_only":true},{"name":"x","path":"/data/x"}`,
			want: of("volumes[1].path", `"/data/x"`, "a path that is not at or below /data of volumes[0].path"),
		},
		{
			name: "privileged", old: `"shm_size":4096`, new: `"privileged":true`,
			want: "launchables[0].privileged: unknown field; allowed: nothing: name the capabilities that the program " +
				"needs in capabilities.add",
		},
	}
}

// containerMistakes are fields of images in the manifest all.
func containerMistakes() []mistake {
	const (
		none  = "nothing: only an image runs in a container"
		other = "no launchable of this pod is an image"
	)
	return []mistake{
		{
			"tar with a ref", `{"kind":"tar",`, `{"kind":"tar","ref":"r.example/a:1","platform":"linux/arm",`,
			`launchables[0].artifact.ref: "r.example/a:1"` + isNot + "nothing: only an image has a ref\n" +
				`launchables[0].artifact.platform: "linux/arm"` + isNot + "nothing: only an image has a platform",
		},
		{
			"tar in a container", `"name":"server",`, `"name":"server","tmpfs":[{"path":"/a"}],"shm_size":4096,` +
				`"read_only_root":true,"capabilities":{},`,
			"launchables[0].tmpfs: a list" + isNot + none + "\nlaunchables[0].shm_size: 4096" + isNot + none +
				"\nlaunchables[0].read_only_root: true" + isNot + none +
				"\nlaunchables[0].capabilities: a map" + isNot + none,
		},
		{
			"volume with a path", `{"name":"data"}`, `{"name":"data","path":"/data","read_only":true}`,
			`volumes[0].path: "/data"` + isNot + "nothing: " + other + "\nvolumes[0].read_only: true" + isNot + "false: " +
				other,
		},
	}
}

// Fields that other systems have are refused with a reason.
func TestUnsupported(t *testing.T) {
	for _, name := range []string{"devices", "gpus", "sysctls", "privileged", "host_pid", "selinux", "init"} {
		text := strings.Replace(allImage, `"shm_size":4096`, `"`+name+`":null`, 1)
		_, err := manifest.Decode([]byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), "launchables[0]."+name+": unknown field; allowed: nothing: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Paths in an image are not paths of the node.
func TestHostPathsOfImages(t *testing.T) {
	got := decode(t, allImage).HostPaths()
	if want := []string{"/usr/bin/check", "/usr/bin/drain", "/usr/bin/probe"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCapability(t *testing.T) {
	for text, want := range map[string]bool{
		"CHOWN": true, "CAP_CHOWN": true, "CAP_CAP_CHOWN": false, "": false, "ALL": false,
	} {
		if name, ok := manifest.Capability(text); ok != want || ok && name != "CAP_CHOWN" {
			t.Errorf("%q: %s, %v", text, name, ok)
		}
	}
}

// A pinned ref keeps its tag. Digests belong to a tag, or to the URL of a tar.
func TestPin(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for _, tt := range []struct {
		artifact       manifest.Artifact
		source, pinned string // pinned: empty if there is nothing to pin
	}{
		{manifest.Artifact{Kind: "image", Ref: "r.example/web:1"}, "r.example/web:1", "r.example/web:1@" + digest},
		{manifest.Artifact{Kind: "image", Ref: "docker.io/nginx:1@" + digest}, "docker.io/library/nginx:1", ""},
		{manifest.Artifact{Kind: "image", Ref: "r.example/web@" + digest}, "", ""},
		{manifest.Artifact{Kind: "image", Ref: "web:1"}, "", ""},
		{manifest.Artifact{Kind: "tar", URL: "file:///a"}, "file:///a", digest},
		{manifest.Artifact{Kind: "tar", URL: "file:///a", SHA256: "b"}, "file:///a", ""},
		{manifest.Artifact{Kind: "exec", Path: "/a"}, "", ""},
	} {
		a := tt.artifact
		if a.Source() != tt.source || a.LacksDigest() != (tt.pinned != "") {
			t.Errorf("%+v: %q, lacks a digest: %v", a, a.Source(), a.LacksDigest())
		}
		if tt.pinned == "" {
			continue
		}
		a.Pin(digest)
		if a.Ref+a.SHA256 != tt.pinned || a.Digest() != digest || a.LacksDigest() || a.Source() != tt.source {
			t.Errorf("%+v became %+v", tt.artifact, a)
		}
	}
}
