cargo build --offline --quiet
cargo run --offline --quiet | grep -q 'five is 5'
cargo test --offline --quiet
