package image

import (
	"errors"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
)

// FuzzDocuments: any manifest, index and configuration is refused as such, or names only digests that can be files.
func FuzzDocuments(f *testing.F) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	layer := `{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"` + digest + `","size":5}`
	f.Add(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"`+digest+
		`","size":2},"layers":[`+layer+`]}`, `{"os":"linux","rootfs":{"type":"layers","diff_ids":["`+digest+`"]}}`)
	f.Add(`{"schemaVersion":2,"mediaType":"`+dockerIndex+`","manifests":[{"mediaType":"`+dockerManifest+`","digest":"`+
		digest+`","size":5,"platform":{"os":"linux","architecture":"amd64"}}]}`, `{}`)
	f.Add(`{"schemaVersion":2,"manifests":[`+layer+`,null]}`, `{"rootfs":{"diff_ids":[""]}}`)
	f.Fuzz(func(t *testing.T, text, configText string) {
		expect := func(err error) bool {
			for _, is := range []error{ErrManifest, ErrUnsupported, ErrPlatform, archive.ErrTooLarge} {
				if errors.Is(err, is) {
					if len(err.Error()) > 2000 {
						t.Errorf("an error of %d bytes", len(err.Error()))
					}
					return true
				}
			}
			if err != nil {
				t.Errorf("another error: %v", err)
			}
			return err != nil
		}
		d, err := parse([]byte(text))
		if expect(err) {
			return
		}
		if d.isIndex() {
			entry, err := d.choose(reference.Platform{OS: "linux", Architecture: "amd64"})
			if !expect(err) && !reference.IsDigest(entry.Digest.String()) {
				t.Errorf("digest %q", entry.Digest)
			}
			return
		}
		cfg := Config{}.withDefaults()
		if expect(cfg.checkManifest(d)) {
			return
		}
		config, err := parseConfig([]byte(configText), len(d.Layers))
		if expect(err) {
			return
		}
		layers := layersOf(d, config.RootFS.DiffIDs)
		if len(layers) == 0 || len(layers) > cfg.MaxLayers || !reference.IsDigest(d.Config.Digest.String()) {
			t.Errorf("%d layers, configuration %q", len(layers), d.Config.Digest)
		}
		for _, l := range layers {
			names := l.names()
			if !reference.IsDigest(l.digest) || !treeName(names[0]) || !treeName(names[1]) || l.size < 1 {
				t.Errorf("layer %+v", l)
			}
		}
	})
}
