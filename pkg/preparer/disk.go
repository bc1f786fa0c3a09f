package preparer

import (
	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

// Disk keeps one JSON file per identity.
type Disk struct{ files durable.Files[Record] }

// NewDisk opens a directory of records, making it if needed. The directory belongs to one daemon (R11). On a full disk,
// records go into the reserve, which may be nil.
func NewDisk(dir string, reserve *durable.Reserve) (*Disk, error) {
	d := &Disk{durable.Files[Record]{
		Dir: dir, What: "pod record", Reserve: reserve, Check: func(r *Record) error { return r.Check() },
		Name: func(r *Record) string { return install.FileName(r.Intent.Identity) },
	}}
	return d, d.files.Open()
}

// Load is durable.Files.Load.
func (d *Disk) Load() (records []Record, bad []error, err error) { return d.files.Load() }

// Save replaces the record of one identity. When it returns nil, the record survives a power failure.
func (d *Disk) Save(rec Record) error { return d.files.Save(&rec) }

// Forget removes the record of an identity. A power failure may bring it back.
func (d *Disk) Forget(id pod.Identity) error { return d.files.Forget(install.FileName(id)) }
