package local

import (
	"encoding/json"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// OpenDisk opens a directory with one JSON file for each service. It makes a missing directory.
func OpenDisk(dir string) (*durable.Files[Service], error) {
	files := &durable.Files[Service]{
		Dir: dir, What: "local service", Check: check,
		Name: func(s *Service) string { return s.Name },
	}
	return files, files.Open()
}

// check also parses the manifests.
func check(s *Service) error {
	if s.Version != Version {
		return fmt.Errorf("format version %d; this build knows version %d", s.Version, Version)
	}
	if err := scale.New(s.Name, 0).Validate(); err != nil {
		return err
	}
	for digest, spec := range s.Specs {
		spec.parsed = new(manifest.Manifest)
		if err := json.Unmarshal(spec.Manifest, spec.parsed); err != nil || manifest.Digest(spec.Manifest) != digest {
			return fmt.Errorf("the manifest of digest %s cannot be read", digest)
		}
		s.Specs[digest] = spec
	}
	if s.Specs[s.Digest].parsed == nil {
		return fmt.Errorf("there is no manifest of digest %s", s.Digest)
	}
	for i := range s.Replicas {
		if r := &s.Replicas[i]; r.Role == "" || r.Index < 0 || r.Revision < 1 {
			return fmt.Errorf("replica %q %d at revision %d", r.Role, r.Index, r.Revision)
		}
	}
	return nil
}
