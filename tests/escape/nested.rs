//! What `resources.nested` opens, and what stays shut.

use bottle::backend::Prepared;
use bottle::plan::Resources;

use crate::stand::every_isolating_backend;

/// A namespace and a mount of its own, then what must not work even there: uncovering, writing to what is
/// read-only, a device.
const SCRIPT: &str = "exec 2>/dev/null; unshare -Ur id -u; \
    unshare -Urm sh -c 'mount -t tmpfs none /tmp && echo mounted; \
        umount /proc/keys && echo uncovered; umount -l /proc && echo uncovered; \
        mount -o remount,bind,rw /usr && echo writable; mount -o remount,rw / && echo writable; \
        mount -t proc proc /proc && echo whole; mknod /tmp/d c 1 1 && cat /tmp/d && echo device; \
        echo evil >/usr/bin/evil && echo wrote; true'; echo end";

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_inside_are_made_when_asked_for_and_open_nothing_outside() {
    for stand in every_isolating_backend().await {
        let nested = Resources { nested: true, ..Resources::default() };
        let mut plan = stand.planned("fits").plan.clone();
        plan.resources = nested.clone();
        if stand.backend.fits(&plan).is_err() {
            continue;
        }
        let without = stand.bottle("flat").await;
        assert_eq!(without.shell(SCRIPT).await, "end\n", "{}", stand.name());
        without.remove().await;
        let bottle = stand.bottle_with("nests", Prepared::default(), nested).await;
        // An image's files are the bottle's own to write to, sandbox or not.
        let wrote = if stand.is_in_image() { "wrote\n" } else { "" };
        assert_eq!(bottle.shell(SCRIPT).await, format!("0\nmounted\n{wrote}end\n"), "{}", stand.name());
        bottle.remove().await;
    }
}
