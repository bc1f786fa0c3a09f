package durable

// SetExchange has a file system exchange two files in another way.
func (r *Records) SetExchange(exchange func(a, b string) error) { r.exchange = exchange }

// SetSync has a directory synced in another way.
func (r *Records) SetSync(sync func(dir string) error) { r.sync = sync }

// Spares returns the paths of the files that wait to be written again.
func (r *Records) Spares() []string { return r.spares }

// MaxSpares is how many there are at most.
const MaxSpares = maxSpares
