package ns

var (
	KernelTest   = kernelTest
	ProcessTest  = processTest
	PinTest      = pinTest
	CheckVisible = checkVisible
	Search       = (*Finder).search
)
