# Commands for who works on linattn.  ARGS go to the command, PYTHON names the interpreter.

.PHONY: asan
asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	tests/sanitize.sh $(ARGS)
