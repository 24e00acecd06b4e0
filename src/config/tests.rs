//! Layers, origins, names, warnings and relations of a whole configuration.

use std::path::PathBuf;

use tidegate_shard::config::{ExchangeConfig, FlushInterval, TurnConfig};
use tidegate_shard::driver::IdleStrategy;

use super::*;
use crate::checkpoint::{Beyond, Recovery};
use crate::coordinator::checkpoint::CheckpointSettings;
use crate::coordinator::restart::RestartSettings;
use crate::graph::key_group::GroupHash;

fn from_yaml(text: &str) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    let mut config = Config::default();
    config.read_file(&path).map(|()| config)
}

fn with(settings: &[&str]) -> Config {
    let mut config = Config::default();
    settings.iter().for_each(|argument| config.define(argument).unwrap());
    config
}

fn entry(config: &Config, key: &str) -> Entry {
    config.entries().into_iter().find(|entry| entry.key == key).unwrap()
}

/// Goal: the defaults are those the engine is designed for.
#[test]
fn defaults_are_those_of_flink() {
    let config = Config::default();
    assert_eq!(config.segment_size(), 32 << 10);
    assert_eq!(config.exclusive_buffers_per_channel(), 2);
    assert_eq!(config.floating_buffers_per_gate(), 8);
    assert_eq!(config.max_buffers_per_channel(), 10);
    assert_eq!(config.max_overdraft_buffers_per_gate(), 20);
    assert_eq!(config.overdraft_reserve(), 64);
    assert_eq!(config.buffer_timeout(), BufferTimeout::After(Duration::from_millis(100)));
    assert_eq!(config.parallelism(), 1);
    assert_eq!(config.max_parallelism(), None);
    assert_eq!(config.pipeline_name(), None);
    assert!(config.operator_chaining() && !config.object_reuse());
    assert_eq!(config.auto_watermark_interval(), Some(Duration::from_millis(200)));
    assert_eq!(config.latency_interval(), None);
    assert_eq!(config.shards(), None);
    assert_eq!(config.shard_quantum(), Duration::from_micros(100));
    assert_eq!(config.idle_strategy(), IdleStrategy::Backoff { spin_ns: 50_000 });
    assert_eq!(config.driver(), Driver::Thread);
    assert!(config.flush_to_idle() && !config.strict_utf8());
    assert_eq!(config.max_record_size(), 64 << 20);
    assert_eq!(config.stall_threshold(), Duration::from_millis(100));
    assert_eq!(config.key_group_hash(), GroupHash::Flink);
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(config.warnings(), []);
}

/// Goal: the data plane gets what was configured, and its own defaults are those of the table.
#[test]
fn the_data_plane_gets_what_is_configured() {
    let config = Config::default();
    assert_eq!(config.exchange_config(), ExchangeConfig::default());
    assert_eq!(config.turn_config(), TurnConfig::default());

    let config = with(&[
        "taskmanager.memory.segment-size=4 kb",
        "taskmanager.network.memory.buffers-per-channel=3",
        "taskmanager.network.memory.floating-buffers-per-gate=9",
        "taskmanager.network.memory.max-buffers-per-channel=11",
        "taskmanager.network.memory.max-overdraft-buffers-per-gate=5",
        "tidegate.pool.overdraft-reserve=7",
        "tidegate.record.max-size=1 mb",
        "execution.buffer-timeout.interval=2 us",
        "tidegate.exchange.flush-to-idle=false",
        "tidegate.shard.quantum=1 ms",
        "tidegate.idle.spin=3 us",
    ]);
    let expected = ExchangeConfig {
        segment_size_bytes: 4096,
        exclusive_per_channel: 3,
        floating_per_gate: 9,
        buffers_per_subpartition_max: 11,
        overdraft_per_partition_max: 5,
        overdraft_reserve_max: 7,
        record_size_bytes_max: 1 << 20,
        flush: FlushInterval::After(2_000),
        flush_to_idle: false,
    };
    assert_eq!(config.exchange_config(), expected);
    assert_eq!(config.turn_config().quantum_ns, 1_000_000);
    assert_eq!(config.idle_strategy(), IdleStrategy::Backoff { spin_ns: 3_000 });
    assert_eq!(with(&["tidegate.idle=spin"]).idle_strategy(), IdleStrategy::Spin);
    assert_eq!(with(&["tidegate.idle=park"]).idle_strategy(), IdleStrategy::Park);
    assert_eq!(FlushInterval::from(BufferTimeout::EveryRecord), FlushInterval::EveryRecord);
    assert_eq!(FlushInterval::from(BufferTimeout::Never), FlushInterval::Never);
}

/// Goal: code > command line > file > default, whatever the order in which they are set.
/// Method: all orders of three layers; after each step the highest layer so far counts.
#[test]
fn the_highest_layer_counts_in_every_order_of_setting() {
    let file = || Origin::File { path: PathBuf::from("config.yaml"), line: Some(7) };
    let layers = [(file(), 2), (Origin::CommandLine, 3), (Origin::Code, 4)];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut config = Config::default();
        let mut highest = 0;
        for step in order {
            let (origin, value) = &layers[step];
            config.set("parallelism.default", &value.to_string(), origin.clone()).unwrap();
            highest = highest.max(step);
            assert_eq!(config.parallelism(), layers[highest].1, "order {order:?}");
            assert_eq!(config.origin("parallelism.default"), layers[highest].0, "order {order:?}");
        }
    }
}

#[test]
fn a_default_of_a_verb_is_under_all_other_layers() {
    let mut config = with(&["tidegate.idle=park"]);
    config.set("tidegate.idle", "spin", Origin::Default).unwrap();
    config.set("parallelism.default", "4", Origin::Default).unwrap();
    assert_eq!(config.idle_strategy(), IdleStrategy::Park);
    assert_eq!(config.parallelism(), 4);
    let entry = entry(&config, "parallelism.default");
    assert_eq!((entry.origin, entry.default.as_deref()), (Origin::Default, Some("1")));
}

#[test]
fn entries_show_value_origin_and_the_older_name() {
    let mut config = from_yaml("state.checkpoints.dir: /tmp/c\nparallelism:\n  default: 2\n").unwrap();
    config.define("metrics.reporter.slf4j.interval=90 s").unwrap();
    config.define("security.ssl.key-password=hunter2").unwrap();

    let dir = entry(&config, "execution.checkpointing.dir");
    assert_eq!(dir.alias.as_deref(), Some("state.checkpoints.dir"));
    assert_eq!(dir.value.as_deref(), Some("/tmp/c"));
    assert!(dir.origin.to_string().ends_with("config.yaml:1"), "{}", dir.origin);
    assert_eq!(dir.status, "use");

    let member = entry(&config, "metrics.reporter.slf4j.interval");
    assert_eq!(member.value.as_deref(), Some("90 s"));
    assert_eq!(member.default.as_deref(), Some("10 s"));
    let password = entry(&config, "security.ssl.key-password");
    assert_eq!(password.value.as_deref(), Some("******"));
    assert!(config.warnings().iter().all(|warning| !warning.to_string().contains("hunter2")));

    let json = serde_json::to_value(entry(&config, "parallelism.default")).unwrap();
    assert_eq!(json["value"], "2");
    assert_eq!(json["default"], "1");
    assert!(json["origin"].as_str().unwrap().ends_with("config.yaml:3"), "{json}");

    let exact = keys::all().filter(|key| !key.is_family()).count();
    assert_eq!(config.entries().len(), exact + 2);
}

#[test]
fn an_unknown_key_is_refused_with_value_origin_and_suggestion() {
    let mut config = Config::default();
    for (argument, parts) in [
        (
            "tidegate.shard=2",
            &["tidegate.shard = \"2\"", "command line", "did you mean tidegate.shards?"][..],
        ),
        ("tidegate.nonsense.whatever=2", &["tidegate.nonsense.whatever", "unknown key"]),
        (
            "taskmanager.network.memory.buffer-per-channel=2",
            &["did you mean taskmanager.network.memory.buffers-per-channel?"],
        ),
        ("state.backand=hashmap", &["did you mean state.backend?"]),
    ] {
        let message = config.define(argument).unwrap_err().to_string();
        for part in parts {
            assert!(message.contains(part), "{argument}: {message}");
        }
    }
    assert!(config.entries().iter().all(|entry| entry.origin == Origin::Default));
}

#[test]
fn a_bad_value_is_refused_with_key_value_and_expectation() {
    let mut config = Config::default();
    for (argument, parts) in [
        ("parallelism.default=0", &["parallelism.default = \"0\"", "command line", "from 1 to 32768"][..]),
        ("parallelism.default=32769", &["from 1 to 32768"]),
        ("pipeline.max-parallelism=0", &["from 1 to 32768, or -1"]),
        ("taskmanager.memory.segment-size=255", &["from 256 bytes to 1 mb", "a multiple of 8"]),
        ("taskmanager.memory.segment-size=1025 kb", &["from 256 bytes to 1 mb"]),
        ("taskmanager.memory.segment-size=", &["= \"\""]),
        ("execution.checkpointing.interval=9 ms", &["of at least 10 ms"]),
        ("execution.buffer-timeout=-2", &["execution.buffer-timeout = \"-2\"", "or -1 for never"]),
        ("tidegate.idle=nap", &["spin, backoff or park"]),
        ("tidegate.source.strict-utf8=yes", &["true or false"]),
        ("restart-strategy.exponential-delay.jitter-factor=1.5", &["a number from 0 to 1"]),
        ("rest.bind-port=http", &["a port, a range"]),
        ("tidegate.record.max-size=256 mb", &["from 1 kb to 255 mb"]),
    ] {
        let message = config.define(argument).unwrap_err().to_string();
        for part in parts {
            assert!(message.contains(part), "{argument}: {message}");
        }
    }
}

#[test]
fn a_define_without_key_or_sign_is_refused() {
    assert_eq!(parse_define("a.b = c=d "), Ok(("a.b", "c=d")));
    assert_eq!(parse_define("pipeline.name="), Ok(("pipeline.name", "")));
    for argument in ["", "a.b", "=c", "  = c"] {
        let message = parse_define(argument).unwrap_err().to_string();
        assert!(message.starts_with(&format!("-D{argument}: expected key=value")), "{message}");
    }
}

#[test]
fn one_key_under_two_names_conflicts_only_with_two_values_in_one_layer() {
    let error = from_yaml("state.checkpoints.dir: /a\nexecution.checkpointing.dir: /b\n").unwrap_err();
    let message = error.to_string();
    for part in ["state.checkpoints.dir = \"/a\"", "execution.checkpointing.dir = \"/b\"", "config.yaml:2"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(from_yaml("state.checkpoints.dir: /a\nexecution.checkpointing.dir: /a\n").is_ok());

    // Another layer overrides, under whichever name; the same name again replaces.
    let mut config = from_yaml("execution.buffer-timeout: 5 ms").unwrap();
    config.define("execution.buffer-timeout.interval=0").unwrap();
    config.define("execution.buffer-timeout.interval=-1 ms").unwrap();
    assert_eq!(config.buffer_timeout(), BufferTimeout::Never);
}

#[test]
fn buffer_timeout_has_three_forms_and_a_switch() {
    for (settings, expected) in [
        (&["execution.buffer-timeout.interval=0"][..], BufferTimeout::EveryRecord),
        (&["execution.buffer-timeout.interval=0 ms"], BufferTimeout::EveryRecord),
        (&["execution.buffer-timeout.interval=-1"], BufferTimeout::Never),
        (&["execution.buffer-timeout.interval=5"], BufferTimeout::After(Duration::from_millis(5))),
        (&["execution.buffer-timeout=50 us"], BufferTimeout::After(Duration::from_micros(50))),
        (
            &["execution.buffer-timeout.enabled=false", "execution.buffer-timeout.interval=0"],
            BufferTimeout::Never,
        ),
    ] {
        assert_eq!(with(settings).buffer_timeout(), expected, "{settings:?}");
    }
}

/// Goal: whoever sets a key that does nothing is told so, with the reason, at whatever value.
#[test]
fn dead_keys_are_named_with_their_reason() {
    let config = with(&[
        "taskmanager.network.netty.client.numThreads=4",
        "pipeline.object-reuse=true",
        "state.backend=rocksdb",
        "taskmanager.network.max-num-tcp-connections=1",
        "parallelism.default=2",
        "taskmanager.network.memory.buffers-per-channel=4",
    ]);
    let warnings: Vec<String> = config.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 4, "{warnings:#?}");
    for part in [
        "taskmanager.network.netty.client.numThreads = 4 (command line): no effect: ",
        "pipeline.object-reuse = true (command line): no effect: ",
        "state.backend.type = rocksdb (command line): no effect yet: ",
        "taskmanager.network.max-num-tcp-connections = 1 (command line): no effect yet: ",
    ] {
        assert!(warnings.iter().any(|warning| warning.starts_with(part)), "{part}: {warnings:#?}");
    }
}

/// Goal: a user's own `config.yaml` of Flink works as it is, and says what is not used.
#[test]
fn an_ordinary_file_of_flink_loads_with_warnings_only() {
    let config = from_yaml(
        "\
env:
  java:
    opts:
      all: --add-exports=java.base/sun.net.util=ALL-UNNAMED
jobmanager:
  bind-host: localhost
  rpc:
    address: localhost
    port: 6123
  memory:
    process:
      size: 1600m
  execution:
    failover-strategy: region
taskmanager:
  bind-host: localhost
  host: localhost
  numberOfTaskSlots: 1
  memory:
    process:
      size: 1728m
parallelism:
  default: 1
rest:
  address: localhost
  bind-address: localhost
",
    )
    .unwrap();
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(config.shards(), Some(1));
    assert_eq!(config.warnings().len(), 11);
}

#[test]
fn a_file_names_all_that_is_wrong_with_it() {
    let error = from_yaml("tidegate:\n  shrads: 1\n  idle: nap\nparallelism.default: 2\n").unwrap_err();
    let message = error.to_string();
    assert_eq!(message.lines().count(), 2, "{message}");
    assert!(message.contains("config.yaml:2") && message.contains("config.yaml:3"), "{message}");
}

#[test]
fn load_joins_file_and_defines_and_checks_relations() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flink-conf.yaml");
    std::fs::write(&path, "parallelism.default: 8\npipeline.max-parallelism: 4\n").unwrap();
    let error = Config::load::<&str>(Some(&path), &[]).unwrap_err();
    assert!(matches!(error, ConfigError::Relation { key: "parallelism.default", .. }), "{error}");
    let config = Config::load(Some(&path), &["parallelism.default=4"]).unwrap();
    assert_eq!((config.parallelism(), config.max_parallelism()), (4, Some(4)));

    let error = Config::load(Some(&dir.path().join("none.yaml")), &["x"]).unwrap_err();
    assert!(matches!(&error, ConfigError::Several(errors) if errors.len() == 2), "{error}");
}

#[test]
fn relations_that_do_not_hold_name_both_keys() {
    for (settings, parts) in [
        (
            &["execution.checkpointing.unaligned=true", "execution.checkpointing.mode=AT_LEAST_ONCE"][..],
            &["mode = AT_LEAST_ONCE", "EXACTLY_ONCE with", "unaligned.enabled = true"][..],
        ),
        (
            &[
                "execution.checkpointing.unaligned=true",
                "execution.checkpointing.max-concurrent-checkpoints=2",
            ],
            &["max-concurrent-checkpoints = 2", "expected 1 with", "unaligned.enabled = true"],
        ),
        (
            &["parallelism.default=5", "pipeline.max-parallelism=4"],
            &["parallelism.default = 5", "at most the number of key groups, pipeline.max-parallelism = 4"],
        ),
        (
            &["tidegate.shard.quantum=1 ms", "tidegate.stall.threshold=1 ms"],
            &["tidegate.stall.threshold = 1 ms", "more than tidegate.shard.quantum = 1 ms"],
        ),
        (&["execution.checkpointing.storage=filesystem"], &["execution.checkpointing.dir = (none)"]),
        (
            &["execution.state-recovery.path=chk-3"],
            &["state-recovery.path = chk-3", "execution.checkpointing.dir = (none)"],
        ),
        (
            &["tidegate.state-recovery.fresh=true"],
            &["state-recovery.fresh = true", "execution.checkpointing.dir = (none)"],
        ),
        (
            &[
                "execution.checkpointing.dir=c",
                "tidegate.state-recovery.fresh=true",
                "execution.state-recovery.path=chk-3",
            ],
            &["expected false with execution.state-recovery.path = chk-3"],
        ),
        (
            &["restart-strategy.exponential-delay.initial-backoff=2 min"],
            &["restart-strategy.exponential-delay.max-backoff = 1 min"],
        ),
        (&["heartbeat.interval=50 s"], &["less than heartbeat.timeout = 50 s"]),
        (
            &["taskmanager.memory.network.min=2 mb", "taskmanager.memory.network.max=1 mb"],
            &["at most taskmanager.memory.network.max = 1 mb"],
        ),
        (
            &["taskmanager.memory.min-segment-size=1 kb", "taskmanager.memory.segment-size=512"],
            &["min-segment-size = 1 kb", "at most taskmanager.memory.segment-size = 512 bytes"],
        ),
    ] {
        let message = with(settings).validate().expect_err(settings[0]).to_string();
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains("(command line)") || settings.len() > 1, "{message}");
        for part in parts {
            assert!(message.contains(part), "{settings:?}: {message}");
        }
    }
    let fine = ["execution.checkpointing.storage=filesystem", "execution.checkpointing.dir=/c"];
    assert_eq!(with(&fine).validate(), Ok(()));
}

#[test]
fn a_key_that_another_makes_idle_is_named() {
    for (settings, key, reason) in [
        (
            &["execution.checkpointing.alignment-timeout=1 s"][..],
            "execution.checkpointing.aligned-checkpoint-timeout",
            "no effect with execution.checkpointing.unaligned.enabled = false",
        ),
        (
            &["tidegate.idle=spin", "tidegate.idle.spin=1 ms"],
            "tidegate.idle.spin",
            "no effect with tidegate.idle = spin",
        ),
        (
            &["execution.buffer-timeout.enabled=false", "execution.buffer-timeout.interval=1"],
            "execution.buffer-timeout.interval",
            "no effect with execution.buffer-timeout.enabled = false",
        ),
        (
            &["tidegate.shards=2", "taskmanager.numberOfTaskSlots=4"],
            "taskmanager.numberOfTaskSlots",
            "no effect with tidegate.shards = 2",
        ),
        (
            &["taskmanager.network.memory.buffers-per-channel=11"],
            "taskmanager.network.memory.buffers-per-channel",
            "only 10 of them can be in use",
        ),
        (
            &["taskmanager.network.memory.max-overdraft-buffers-per-gate=65"],
            "taskmanager.network.memory.max-overdraft-buffers-per-gate",
            "only 64 of them can be borrowed",
        ),
        (
            &["restart-strategy=fixed-delay", "restart-strategy.failure-rate.delay=2 s"],
            "restart-strategy.failure-rate.delay",
            "no effect with restart-strategy.type = fixed-delay",
        ),
    ] {
        let config = with(settings);
        let found = config.warnings().iter().any(|w| w.key == key && w.reason.starts_with(reason));
        assert!(found, "{settings:?}: {:#?}", config.warnings());
    }
    assert_eq!(with(&["tidegate.idle.spin=1 ms", "tidegate.shards=2"]).warnings(), []);
}

#[test]
fn slots_are_the_number_of_shards_unless_shards_are_set() {
    assert_eq!(with(&["taskmanager.numberOfTaskSlots=3"]).shards(), Some(3));
    assert_eq!(with(&["taskmanager.numberOfTaskSlots=3", "tidegate.shards=2"]).shards(), Some(2));
}

#[test]
fn only_the_simulation_takes_tiny_segments() {
    let mut config = Config::for_simulation();
    for size in ["64", "72", "32 kb"] {
        config.set("taskmanager.memory.segment-size", size, Origin::Code).unwrap();
    }
    config.set("taskmanager.memory.segment-size", "64", Origin::Code).unwrap();
    assert_eq!((config.segment_size(), config.validate()), (64, Ok(())));
    assert!(config.set("taskmanager.memory.segment-size", "56", Origin::Code).is_err());
    assert!(Config::default().set("taskmanager.memory.segment-size", "64", Origin::Code).is_err());
}

#[test]
fn rings_have_room_for_cap_overdraft_and_events() {
    for (cap, overdraft) in [(1, 0), (10, 20), (10, 2), (10, 3), (1024, 1024)] {
        let slots = ring_slots(cap, overdraft);
        assert!(slots.is_power_of_two() && slots >= cap + overdraft + RING_EVENTS);
        let exchange = ExchangeConfig {
            buffers_per_subpartition_max: cap,
            overdraft_per_partition_max: overdraft,
            ..ExchangeConfig::default()
        };
        assert_eq!(slots as usize, exchange.ring_slots(), "both crates count alike");
        assert!(slots < 2 * (cap + overdraft + RING_EVENTS), "the next power of two, not a later one");
    }
}

#[test]
#[should_panic(expected = "is not in the table of keys")]
fn code_that_mistakes_a_key_is_stopped() {
    Config::default().get::<u32>("parallelism");
}

/// Goal: what a job recovers from is one value, whichever way its parts were set.
#[test]
fn recovery_is_one_value_and_needs_a_directory() {
    assert_eq!(Config::default().recovery(), None);
    let defines = ["state.checkpoints.dir=c", "execution.savepoint.path=c/chk-3"];
    let beyond = |word| format!("tidegate.state-recovery.output-beyond={word}");
    for (word, beyond_is) in
        [("refuse", Beyond::Refuse), ("retract", Beyond::Retract), ("accept", Beyond::Accept)]
    {
        let defines = [defines[0].to_string(), defines[1].to_string(), beyond(word)];
        let recovery = Config::load(None, &defines).unwrap().recovery().unwrap();
        let expected =
            Recovery { directory: "c".into(), from: Some("c/chk-3".into()), fresh: false, beyond: beyond_is };
        assert_eq!(recovery, expected);
    }
}

/// Goal: the coordinator gets what was configured; a pause leaves no room for a second checkpoint; the defaults are
/// Flink's, but that checkpoints hold changes only.
#[test]
fn checkpoint_settings_are_as_configured() {
    let second = 1_000_000_000;
    let config = Config::default();
    assert_eq!(config.checkpoint_settings(), CheckpointSettings::default());
    assert_eq!((config.checkpoint_interval(), config.checkpoints_retained()), (None, 1));
    assert_eq!((config.checkpoint_incremental(), config.checkpoint_inline_threshold()), (true, 20 << 10));
    let mut settings = vec![
        "execution.checkpointing.interval=5 s",
        "execution.checkpointing.timeout=7 s",
        "execution.checkpointing.max-concurrent-checkpoints=3",
        "execution.checkpointing.tolerable-failed-checkpoints=4",
        "execution.checkpointing.mode=AT_LEAST_ONCE",
        "execution.checkpointing.checkpoints-after-tasks-finish.enabled=false",
        "state.checkpoints.num-retained=6",
        "web.checkpoints.history=2",
        "state.backend.incremental=false",
        "state.storage.fs.memory-threshold=1 kb",
    ];
    let expected = CheckpointSettings {
        interval_ns: Some(5 * second),
        timeout_ns: 7 * second,
        min_pause_ns: 0,
        concurrent_max: 3,
        tolerable_failures: 4,
        exactly_once: false,
        after_tasks_finish: false,
        history_max: 2,
    };
    let config = with(&settings);
    assert_eq!(config.checkpoint_settings(), expected);
    assert_eq!((config.checkpoints_retained(), config.checkpoint_incremental()), (6, false));
    assert_eq!(config.checkpoint_inline_threshold(), 1 << 10);
    settings.push("execution.checkpointing.min-pause=2 s");
    let config = with(&settings);
    let expected = CheckpointSettings { min_pause_ns: 2 * second, concurrent_max: 1, ..expected };
    assert_eq!(config.checkpoint_settings(), expected);
    assert!(config.warnings().iter().any(|warning| warning.key.ends_with("max-concurrent-checkpoints")));
    assert!(Config::default().define("execution.checkpointing.timeout=9 ms").is_err());
}

/// Goal: without a choice a job is restarted if it takes checkpoints; each strategy gets its own values, whose
/// defaults are those of Flink 2.
#[test]
fn the_restart_strategy_is_as_configured() {
    let (s, min) = (Duration::from_secs, |min: u64| Duration::from_secs(60 * min));
    let exponential = RestartSettings::ExponentialDelay {
        initial: s(1),
        max: min(1),
        multiplier: 1.5,
        reset: min(60),
        jitter: 0.1,
        attempts_max: None,
    };
    let fixed = RestartSettings::FixedDelay { attempts_max: 1, delay: s(1) };
    let rate = RestartSettings::FailureRate { failures_max: 1, interval: min(1), delay: s(1) };
    for (settings, expected) in [
        (&[][..], RestartSettings::Disabled),
        (&["execution.checkpointing.interval=1 s"], exponential),
        (&["execution.checkpointing.interval=1 s", "restart-strategy=none"], RestartSettings::Disabled),
        (&["restart-strategy.type=off"], RestartSettings::Disabled),
        (&["restart-strategy.type=disable"], RestartSettings::Disabled),
        (&["restart-strategy.type=fixed-delay"], fixed),
        (&["restart-strategy.type=failure-rate"], rate),
        (&["restart-strategy.type=exponential-delay"], exponential),
        (
            &[
                "restart-strategy.type=fixed-delay",
                "restart-strategy.fixed-delay.attempts=3",
                "restart-strategy.fixed-delay.delay=2 s",
            ],
            RestartSettings::FixedDelay { attempts_max: 3, delay: s(2) },
        ),
        (
            &[
                "restart-strategy.type=failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval=5",
                "restart-strategy.failure-rate.failure-rate-interval=2 min",
                "restart-strategy.failure-rate.delay=3 s",
            ],
            RestartSettings::FailureRate { failures_max: 5, interval: min(2), delay: s(3) },
        ),
        (
            &[
                "restart-strategy.type=exponential-delay",
                "restart-strategy.exponential-delay.initial-backoff=2 s",
                "restart-strategy.exponential-delay.max-backoff=2 min",
                "restart-strategy.exponential-delay.backoff-multiplier=2",
                "restart-strategy.exponential-delay.reset-backoff-threshold=3 min",
                "restart-strategy.exponential-delay.jitter-factor=0.5",
                "restart-strategy.exponential-delay.attempts-before-reset-backoff=7",
            ],
            RestartSettings::ExponentialDelay {
                initial: s(2),
                max: min(2),
                multiplier: 2.0,
                reset: min(3),
                jitter: 0.5,
                attempts_max: Some(7),
            },
        ),
    ] {
        assert_eq!(with(settings).restart_strategy(), expected, "{settings:?}");
    }
}

/// Goal: whoever sets how checkpoints are taken, and not that they are, is told.
#[test]
fn settings_of_checkpoints_without_checkpoints_are_named() {
    for setting in [
        "execution.checkpointing.timeout=1 s",
        "execution.checkpointing.min-pause=1 s",
        "execution.checkpointing.tolerable-failed-checkpoints=1",
    ] {
        let told = |config: &Config| {
            let reason = "no effect with execution.checkpointing.interval = (none)";
            config.warnings().iter().any(|warning| warning.reason == reason)
        };
        assert!(told(&with(&[setting])), "{setting}");
        assert!(!told(&with(&[setting, "execution.checkpointing.interval=1 s"])), "{setting}");
    }
    assert_eq!(with(&["execution.checkpointing.interval=1 s"]).warnings(), []);
}
