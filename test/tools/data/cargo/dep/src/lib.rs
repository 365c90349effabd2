pub fn same(n: u32) -> u32 {
    n
}
