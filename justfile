# Everything that has to pass before a change is sent.
check: fmt clippy test tidy

# Format check; `cargo fmt` repairs.
fmt:
    cargo fmt --all --check

clippy:
    cargo clippy --workspace --all-targets -- -D warnings

# Fetch the test model when it is missing, then run every test.
test:
    cargo xtask test

tidy:
    cargo xtask tidy

# Run the command, for example: just run run "Tell me a story about a fox"
[positional-arguments]
run *ARGUMENTS:
    cargo run --release -- "$@"
