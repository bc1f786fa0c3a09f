package local

import (
	"encoding/json"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// Disk keeps one JSON file for each service.
type Disk struct{ files durable.Files[Service] }

// OpenDisk opens a directory of services, made if it is needed.
func OpenDisk(dir string, reserve *durable.Reserve) (*Disk, error) {
	d := &Disk{durable.Files[Service]{Dir: dir, What: "local service", Reserve: reserve, Check: check, Name: func(s *Service) string { return s.Name }}}
	return d, d.files.Open()
}

// Load reads all services, by name. A file that is none is set aside and reported, and its pods run on; see durable.Files.
func (d *Disk) Load() (all map[string]*Service, bad []error, err error) {
	services, bad, err := d.files.Load()
	if err != nil {
		return nil, nil, err
	}
	all = make(map[string]*Service, len(services))
	for i := range services {
		all[services[i].Name] = &services[i]
	}
	return all, bad, nil
}

// check says what is wrong with a service that was read, and reads its manifests.
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

// Save replaces the file of a service. When it returns nil, the file survives a power failure.
func (d *Disk) Save(s *Service) error { return d.files.Save(s) }

// Forget removes the file of a service. A power failure may bring it back, with replicas that are to stop.
func (d *Disk) Forget(name string) error { return d.files.Forget(name) }
