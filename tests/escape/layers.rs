//! What an agent leaves in its folders, where the host works later: looking for work, removing.

use std::os::unix::fs::PermissionsExt;

use crate::stand::every_isolating_backend;

#[tokio::test(flavor = "multi_thread")]
async fn removing_a_bottle_follows_no_link_and_is_stopped_by_no_mode() {
    for stand in every_isolating_backend().await {
        let precious = stand.host.user_home.join("precious");
        std::fs::create_dir_all(&precious).expect("made");
        std::fs::write(precious.join("file"), "kept").expect("written");
        std::fs::set_permissions(&precious, std::fs::Permissions::from_mode(0o755)).expect("open");
        let since = jiff::Timestamp::now();
        let bottle = stand.bottle("litter").await;
        bottle
            .shell(&format!(
                "for d in /workspace /home/agent; do cd $d; ln -s {0} folder; ln -s {0}/file file; ln -s / root; \
                     ln -s .. up; mkdir -p deep/er; ln -s ../../.. deep/er/up; mkfifo deep/pipe; \
                     touch 'a\nb' \"$(printf '\\033]0;x\\007')\" ./-rf; chmod 0 deep/er; chmod 0 deep; done",
                precious.display()
            ))
            .await;
        // Neither what cannot be opened nor what blocks a reader keeps it from being looked at.
        let looked = stand.backend.holds_work(bottle.slug(), since);
        let looked =
            tokio::time::timeout(std::time::Duration::from_secs(60), looked).await.expect("an answer");
        assert!(looked.unwrap_or(true), "{}", stand.name());
        bottle.remove().await;
        assert_eq!(bottle.found().await, [], "{}", stand.name());
        assert_eq!(std::fs::read_to_string(precious.join("file")).expect("there"), "kept");
    }
}
