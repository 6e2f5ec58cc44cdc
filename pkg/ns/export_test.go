package ns

// The ways of Gone, and what keeps it from the second one.
var (
	ByHandle = byHandle
	Unused   = unused
	SeesAll  = seesAll
	Search   = (*Finder).search
)
