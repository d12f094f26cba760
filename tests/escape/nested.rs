//! Tests which actions `resources.nested` allows and which it still forbids.

use bottle_backend::Prepared;
use bottle_plan::Resources;

use crate::fixture::every_isolating_backend;

/// Creates a user namespace and mounts a tmpfs. Then tries actions that must fail even in this namespace: removing the
/// covers of `/proc`, making a read-only mount writable, and using a device.
const SCRIPT: &str = "exec 2>/dev/null; unshare -Ur id -u; \
    unshare -Urm sh -c 'mount -t tmpfs none /tmp && echo mounted; \
        umount /proc/keys && echo uncovered; umount -l /proc && echo uncovered; \
        mount -o remount,bind,rw /usr && echo writable; mount -o remount,rw / && echo writable; \
        mount -t proc proc /proc && echo whole; mknod /tmp/d c 1 1 && cat /tmp/d && echo device; \
        echo evil >/usr/bin/evil && echo wrote; true'; echo end";

#[tokio::test(flavor = "multi_thread")]
async fn nested_sandboxes_work_when_allowed_and_reach_nothing_outside() {
    for fixture in every_isolating_backend().await {
        let nested = Resources { nested: true, ..Resources::default() };
        let mut plan = fixture.planned("fits").plan.clone();
        plan.resources = nested.clone();
        if fixture.backend.supports(&plan).is_err() {
            continue;
        }
        let without = fixture.bottle("flat").await;
        assert_eq!(without.shell(SCRIPT).await, "end\n", "{}", fixture.name());
        without.remove().await;
        let bottle = fixture.bottle_with("nests", Prepared::default(), nested).await;
        // A bottle may write to the files of its image, with and without `nested`.
        let wrote = if fixture.is_in_image() { "wrote\n" } else { "" };
        assert_eq!(bottle.shell(SCRIPT).await, format!("0\nmounted\n{wrote}end\n"), "{}", fixture.name());
        bottle.remove().await;
    }
}
