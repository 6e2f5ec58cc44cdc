package ns

// The ways of Gone, and what keeps it from the second one.
var (
	ByHandle = byHandle
	Unused   = unused
	Unpinned = unpinned
	SeesAll  = seesAll
	Search   = (*Finder).search
)
