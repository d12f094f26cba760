//! Tests shared memory, which programs address by a number or a name.

use crate::attempts;
use crate::fixture::every_isolating_backend;

/// A number that no other process uses as a key.
fn key() -> u32 {
    0x626f_0000 | (std::process::id() & 0xffff)
}

/// A script that opens a shared memory segment, or creates one if `make` is set. It prints `found` or the error.
fn script(make: bool) -> String {
    let flags = if make { "0o1666" } else { "0" };
    format!(
        "import ctypes, errno\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         found = libc.shmget(ctypes.c_int({key}), ctypes.c_size_t({size}), {flags})\n\
         print('found' if found >= 0 else errno.errorcode[ctypes.get_errno()])\n",
        key = key(),
        size = if make { 4096 } else { 0 },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_machines_shared_memory_is_invisible() {
    if !attempts::possible("shared memory") {
        return;
    }
    assert_eq!(attempts::outside(&script(true)), "found\n", "it is made");
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("shared").await;
        assert_eq!(attempts::outside(&script(false)), "found\n", "the control");
        assert_eq!(attempts::inside(&bottle, &script(false)).await, "ENOENT\n", "{}", fixture.name());
        bottle.remove().await;
    }
    let remove = script(false).replace("print(", "libc.shmctl(found, 0, None); print(");
    assert_eq!(attempts::outside(&remove), "found\n", "it is removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn posix_shared_memory_belongs_to_the_bottle() {
    let name = format!("bottle-test-{}", std::process::id());
    let outside = std::path::Path::new("/dev/shm").join(&name);
    std::fs::write(&outside, "of the machine").expect("written");
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("named").await;
        let said = bottle
            .shell(&format!("cd /dev/shm; cat {name} 2>/dev/null; echo own >{name} && cat {name}"))
            .await;
        assert_eq!(said, "own\n", "{}", fixture.name());
        bottle.remove().await;
    }
    assert_eq!(std::fs::read_to_string(&outside).expect("there"), "of the machine");
    std::fs::remove_file(&outside).expect("removed");
}
