//! Writing files of the host.

use crate::attempts;
use crate::stand::every_isolating_backend;

#[tokio::test(flavor = "multi_thread")]
async fn no_path_leads_to_a_file_outside() {
    for stand in every_isolating_backend().await {
        let target = stand.host.user_home.join("notes/target");
        std::fs::create_dir_all(target.parent().expect("a parent")).expect("made");
        std::fs::write(&target, "before").expect("written");
        let bottle = stand.bottle("writes").await;
        let said = bottle
            .shell(&format!(
                "t={0}; echo control >/workspace/inside && cat /workspace/inside; exec 2>/dev/null; \
                 cd /workspace; ln -s $t link; ln -s / root; ln -s ../../../../../../../.. up; ln $t hard; \
                 for p in /workspace/link /workspace/root$t /workspace/up$t /proc/self/root$t /proc/1/root$t \
                     /proc/self/cwd/../../../../..$t /proc/1/cwd$t /proc/self/fd/../root$t hard; do \
                     (echo evil >$p); rm -f $p; mv /workspace/inside $p; cp /bin/sh $p; done; \
                 for p in /proc/self/root /proc/1/root /workspace/root /workspace/up; do mkdir -p $p{1}; \
                     (echo evil >$p$t); done",
                target.display(),
                target.parent().expect("a parent").display(),
            ))
            .await;
        assert_eq!(said, "control\n", "{}", stand.name());
        assert_eq!(std::fs::read_to_string(&target).expect("there"), "before", "{}", stand.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_systems_folders_are_shut() {
    for stand in attempts::complete_systems().await {
        let bottle = stand.bottle("system").await;
        // `/dev/shm` is the control: it can be written, and lies beside what cannot.
        let said = bottle
            .shell(
                "for d in /dev/shm / /usr /usr/bin /usr/lib /bin /lib /sbin /etc /etc/ssl /dev /var /sys /proc \
                     /proc/sys /run/bottle/door /home; do \
                     (echo evil >$d/evil) 2>/dev/null && echo wrote $d; done; \
                 for f in /etc/passwd /etc/hosts /etc/resolv.conf /bin/sh /run/bottle/bottle /proc/1/mem \
                     /usr/bin/env /etc/ld.so.cache; do \
                     (echo evil >>$f) 2>/dev/null && echo wrote $f; \
                     [ -e $f ] && chmod 777 $f 2>/dev/null && echo changed $f; done; true",
            )
            .await;
        assert_eq!(said, "wrote /dev/shm\n", "{}", stand.name());
        bottle.remove().await;
    }
}
