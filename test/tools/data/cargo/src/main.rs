include!(concat!(env!("OUT_DIR"), "/five.rs"));

fn main() {
    println!("five is {}", dep::same(FIVE));
}

#[test]
fn five() {
    assert_eq!(dep::same(FIVE), 5);
}
