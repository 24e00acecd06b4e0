//! Random jobs: streams of the public API, and beside each the model of what must be in it.

use super::clock::{Rng, mix};
use super::model::{Instance, Item, Ledger, Model, Node, NodeIndex, Op, Plain, Text};
use super::model::{key_of, source_id, time_of, total_id};
use super::settings::Settings;
use tidegate::api::{Environment, InputChain, JobGraph, Stream};
use tidegate::config::{Config, Origin};
use tidegate::operator::boxed::BoxedChain;
use tidegate::operator::{Collector, Control, Output, Wait};
use tidegate::record::{NO_TIMESTAMP, Timestamp};
use tidegate::sink::Sink;
use tidegate::source::{Source, SourceContext, SourceError, SourceOutput, SourcePoll, Waker};
use tidegate::subtask::SubtaskInfo;

/// A job and what it must do.
pub struct Topology {
    /// The job, put together and not started.
    pub job: JobGraph,
    /// What each of its operators must be given.
    pub model: Model,
}

/// A stream behind an exchange.
struct Built<T: Item> {
    stream: Stream<T, InputChain<T>>,
    node: NodeIndex,
    parallelism: u32,
    /// Whether each record has the event time of its id, or none has one; unknown if there are both.
    timed: Option<bool>,
}

enum Open {
    Plain(Built<Plain>),
    Text(Built<Text>),
}

/// State of keyed operators: large, so that few keys split a page.
type State = [u64; 8];

struct Builder<'a> {
    rng: Rng,
    settings: &'a Settings,
    ledger: Ledger,
    env: Environment,
    model: Model,
    open: Vec<Open>,
}

/// Puts a random job together.
pub fn build(settings: &Settings, ledger: &Ledger, rng: Rng) -> Topology {
    let mut config = Config::for_simulation();
    let mut set = |key: &str, value: &str| {
        config.set(key, value, Origin::Code).expect("the value is within its bounds");
    };
    set("pipeline.operator-chaining.enabled", if settings.chaining { "true" } else { "false" });
    set("metrics.latency.interval", if settings.markers { "1 ms" } else { "0 ms" });
    let env = Environment::with_config(config);
    let mut builder = Builder {
        rng,
        settings,
        ledger: ledger.clone(),
        env: env.clone(),
        model: Model::default(),
        open: Vec::new(),
    };
    for _ in 0..builder.rng.within(1..=2) {
        builder.source();
    }
    for _ in 0..builder.rng.within(0..=3) {
        builder.stage();
    }
    while let Some(open) = builder.open.pop() {
        match open {
            Open::Plain(built) => builder.sink(built),
            Open::Text(built) => builder.sink(built),
        }
    }
    Topology { job: env.job("simulation"), model: builder.model }
}

impl Builder<'_> {
    fn parallelism(&mut self) -> u32 {
        self.rng.within(1..=5) as u32
    }

    /// An instance whose input is the records of `node`.
    fn instance(&mut self, name: &str, node: NodeIndex, timed: Option<bool>) -> Instance {
        let point = self.model.point(format!("{name} {}", self.model.points()), node);
        Instance::new(self.ledger.clone(), point, timed, self.settings.text_max)
    }

    fn keep<T: Item>(&mut self, built: Built<T>, as_open: fn(Built<T>) -> Open) {
        self.open.push(as_open(built));
    }

    fn source(&mut self) {
        if self.rng.once_in(2) {
            self.source_of::<Plain>(Open::Plain);
        } else {
            self.source_of::<Text>(Open::Text);
        }
    }

    fn source_of<T: Item>(&mut self, as_open: fn(Built<T>) -> Open) {
        let parallelism = self.parallelism();
        let (point, node) = self.model.source("source");
        let rng = self.rng.fork();
        let records = self.rng.pick(&[0, 3, 40, 200, 400]);
        let instance = Instance::new(self.ledger.clone(), point, None, self.settings.text_max);
        let timestamps = self.settings.timestamps;
        let open = move |cx: &SourceContext| {
            let mut rng = rng.clone();
            (0..=cx.subtask).for_each(|_| rng = rng.fork());
            let records = rng.below(records + 1);
            let (instance, waker) = (instance.clone(), cx.waker.clone());
            Ok(RandomSource::<T> {
                instance,
                waker,
                rng,
                timestamps,
                records,
                emitted: 0,
                idle: false,
                item: std::marker::PhantomData,
            })
        };
        let stream = self.env.source("source", open).parallelism(parallelism);
        let stream = if timestamps { stream.with_timestamps() } else { stream };
        let shard_offset = self.rng.below(4) as u32;
        let stream = stream.shard_offset(shard_offset).boxed();
        let built = if self.rng.once_in(3) {
            self.keyed(stream, node, Some(timestamps))
        } else {
            self.exchange(stream, parallelism, node, Some(timestamps))
        };
        self.keep(built, as_open);
    }

    /// One more operator behind one of the streams, or where two of them meet.
    fn stage(&mut self) {
        let index = self.rng.below(self.open.len() as u64) as usize;
        let first = self.open.swap_remove(index);
        match (first, self.rng.below(10)) {
            (Open::Plain(built), choice) => self.stage_of(built, choice, Open::Plain),
            (Open::Text(built), choice) => self.stage_of(built, choice, Open::Text),
        }
    }

    fn stage_of<T: Item>(&mut self, built: Built<T>, choice: u64, as_open: fn(Built<T>) -> Open) {
        match choice {
            0 | 1 => {
                let parallelism = built.parallelism;
                let (stream, node, timed) = self.flat::<T, T>(built);
                let built = self.exchange(stream, parallelism, node, timed);
                self.keep(built, as_open);
            }
            2 | 3 => {
                let (stream, node, timed) = self.flat::<T, T>(built);
                let built = self.keyed(stream, node, timed);
                self.keep(built, as_open);
            }
            4 => {
                let built = self.waiting(built);
                self.keep(built, as_open);
            }
            5 => {
                let Built { stream, node, parallelism, timed } = built;
                let (a, b) = stream.tee();
                self.keep(Built { stream: a, node, parallelism, timed }, as_open);
                self.keep(Built { stream: b, node, parallelism, timed }, as_open);
            }
            6 => self.side(built, as_open),
            7 => {
                let parallelism = built.parallelism;
                let (stream, node, timed) = self.flat::<T, Plain>(built);
                let built = self.exchange(stream, parallelism, node, timed);
                self.keep(built, Open::Plain);
            }
            8 => {
                let parallelism = built.parallelism;
                let (stream, node, timed) = self.flat::<T, Text>(built);
                let built = self.exchange(stream, parallelism, node, timed);
                self.keep(built, Open::Text);
            }
            _ => {
                let second = match self.open.pop() {
                    Some(second) => second,
                    None => {
                        self.source();
                        self.open.pop().expect("a source leaves a stream")
                    }
                };
                // Both as the same type for a union, as different ones for a connection.
                let (first, node, timed) = self.flat::<T, Plain>(built);
                match second {
                    Open::Plain(second) => self.meet(first, node, timed, second),
                    Open::Text(second) => self.meet(first, node, timed, second),
                }
            }
        }
    }

    /// An operator without state and without an exchange behind it.
    fn flat<T: Item, U: Item>(
        &mut self,
        built: Built<T>,
    ) -> (Stream<U, BoxedChain<U>>, NodeIndex, Option<bool>) {
        let Built { stream, node, timed, .. } = built;
        let mut instance = self.instance("flat map", node, timed);
        let op = self.op();
        let salt = self.rng.next();
        let f = move |record: T::Ref<'_>, out: &mut Output<'_, U>| {
            let id = instance.take::<T>(record, out.timestamp());
            op.apply(id, salt, |child| instance.emit::<U, _>(child, |view| out.emit(view)));
        };
        (stream.flat_map::<U, _>(f).boxed(), self.model.node(Node::Applied(node, op, salt)), timed)
    }

    fn op(&mut self) -> Op {
        let most = self.rng.pick(&[4, 20, 60]);
        self.rng.pick(&[Op::Map, Op::Map, Op::Filter, Op::Burst(most)])
    }

    /// An operator that is busy after some records, and wants some a second and a third time.
    fn waiting<T: Item>(&mut self, built: Built<T>) -> Built<T> {
        let Built { stream, node, parallelism, timed } = built;
        let mut instance = self.instance("waiting", node, timed);
        let (op, salt) = (self.op(), self.rng.next());
        let pause_ns = self.rng.within(1..=50_000);
        let mut refused = 0;
        let f = move |record: T::Ref<'_>, out: &mut Output<'_, T>| {
            let chance = mix(T::id(record) ^ salt);
            if refused < chance % 8 / 6 * (chance >> 8 & 3) {
                refused += 1;
                return Wait::NotYet(out.now_ns() + (chance >> 16) % pause_ns);
            }
            refused = 0;
            let id = instance.take::<T>(record, out.timestamp());
            op.apply(id, salt, |child| instance.emit::<T, _>(child, |view| out.emit(view)));
            if chance.is_multiple_of(5) {
                return Wait::BusyUntil(out.now_ns() + (chance >> 16) % pause_ns);
            }
            Wait::Done
        };
        let stream = stream.process::<T, _>(f).boxed();
        let node = self.model.node(Node::Applied(node, op, salt));
        self.plain_exchange(stream, parallelism, node, timed)
    }

    /// An operator with a value for each key, which counts the key's records.
    fn keyed<T: Item>(
        &mut self,
        stream: Stream<T, BoxedChain<T>>,
        node: NodeIndex,
        timed: Option<bool>,
    ) -> Built<T> {
        let parallelism = self.parallelism();
        // Few groups, so that their pages fill.
        let groups = parallelism + self.rng.below(3) as u32;
        let keys = self.rng.pick(&[1, 3, 50, 2000, 2000]);
        let key = move |record: T::Ref<'_>| key_of(T::id(record), keys);
        let stream = stream.key_by::<u64, _>(key).parallelism(parallelism).max_parallelism(groups);
        let mut instance = self.instance("keyed", node, timed);
        let (op, salt) = (self.op(), self.rng.next());
        match self.rng.below(3) {
            0 => {
                let f = move |record: T::Ref<'_>, state: &mut State, out: &mut Output<'_, T>| {
                    let id = instance.take::<T>(record, out.timestamp());
                    instance.count(key_of(id, keys), state[0]);
                    state[0] += 1;
                    op.apply(id, salt, |child| instance.emit::<T, _>(child, |view| out.emit(view)));
                };
                let node = self.model.node(Node::Applied(node, op, salt));
                self.plain_exchange(
                    stream.process::<State, T, _, _>("count", f).boxed(),
                    parallelism,
                    node,
                    timed,
                )
            }
            1 => {
                let mut refused = false;
                let f = move |record: T::Ref<'_>, state: &mut State, out: &mut Output<'_, T>| {
                    let chance = mix(T::id(record) ^ salt);
                    refused = !refused && chance.is_multiple_of(4);
                    if refused {
                        return Wait::NotYet(out.now_ns() + (chance >> 16) % 9_000);
                    }
                    let id = instance.take::<T>(record, out.timestamp());
                    instance.count(key_of(id, keys), state[0]);
                    state[0] += 1;
                    op.apply(id, salt, |child| instance.emit::<T, _>(child, |view| out.emit(view)));
                    if chance.is_multiple_of(5) {
                        out.busy_for(std::time::Duration::from_nanos(3_000))
                    } else {
                        Wait::Done
                    }
                };
                let node = self.model.node(Node::Applied(node, op, salt));
                self.plain_exchange(
                    stream.process::<State, T, _, _>("count", f).boxed(),
                    parallelism,
                    node,
                    timed,
                )
            }
            _ => {
                let mut ender = instance.clone();
                let f = move |record: T::Ref<'_>, state: &mut State, out: &mut Output<'_, T>| {
                    let id = instance.take::<T>(record, out.timestamp());
                    instance.count(key_of(id, keys), state[0]);
                    state[0] += 1;
                };
                let at_end = move |key: u64, state: &State, out: &mut Output<'_, T>| {
                    ender.emit::<T, _>(total_id(key, state[0], salt), |view| out.emit(view));
                };
                let node = self.model.node(Node::Totals(node, keys, salt));
                let stream = stream.process_with_end::<State, T, _, _, _>("count", f, at_end).boxed();
                self.plain_exchange(stream, parallelism, node, Some(false))
            }
        }
    }

    /// Two streams that meet.
    fn meet<B: Item>(
        &mut self,
        first: Stream<Plain, BoxedChain<Plain>>,
        first_node: NodeIndex,
        first_timed: Option<bool>,
        second: Built<B>,
    ) {
        let parallelism = self.parallelism();
        let choice = self.rng.below(4);
        let keys = self.rng.pick(&[1, 10, 300]);
        let key = move |record: Plain| key_of(record.0, keys);
        if choice == 0 {
            let (second, second_node, second_timed) = self.flat::<B, Plain>(second);
            let stream = first.union(second).parallelism(parallelism);
            let node = self.model.node(Node::Both(first_node, second_node));
            let timed = if first_timed == second_timed { first_timed } else { None };
            return self.keep(Built { stream, node, parallelism, timed }, Open::Plain);
        }
        let (second, second_node, second_timed) = self.flat::<B, Text>(second);
        let seen_node = match choice {
            3 => self.model.node(Node::Times(second_node, u64::from(parallelism))),
            _ => second_node,
        };
        let mut a = self.instance("first input", first_node, first_timed);
        let mut b = self.instance("second input", seen_node, second_timed);
        let (op, salt) = (self.op(), self.rng.next());
        let a_node = self.model.node(Node::Applied(first_node, op, salt));
        let b_node = self.model.node(Node::Applied(seen_node, op, salt));
        let node = self.model.node(Node::Both(a_node, b_node));
        let timed = if first_timed == second_timed { first_timed } else { None };
        macro_rules! run {
            ($instance:ident, $type:ty, $record:ident, $out:ident) => {{
                let id = $instance.take::<$type>($record, $out.timestamp());
                op.apply(id, salt, |child| $instance.emit::<Plain, _>(child, |view| $out.emit(view)));
                id
            }};
        }
        let built = match choice {
            1 => {
                let on_first = move |record: Plain, seen: &mut u64, out: &mut Output<'_, Plain>| {
                    *seen ^= run!(a, Plain, record, out);
                };
                let on_second =
                    move |record: (u64, u64, &str), seen: &mut u64, out: &mut Output<'_, Plain>| {
                        *seen ^= run!(b, Text, record, out);
                    };
                let stream =
                    first.connect(second).parallelism(parallelism).process(on_first, on_second).boxed();
                self.plain_exchange(stream, parallelism, node, timed)
            }
            2 => {
                let second_key = move |record: (u64, u64, &str)| key_of(record.0, keys);
                let on_first = move |record: Plain, state: &mut State, out: &mut Output<'_, Plain>| {
                    let id = run!(a, Plain, record, out);
                    a.count(key_of(id, keys), state[0]);
                    state[0] += 1;
                };
                let on_second =
                    move |record: (u64, u64, &str), state: &mut State, out: &mut Output<'_, Plain>| {
                        let id = run!(b, Text, record, out);
                        b.count(key_of(id, keys), state[1]);
                        state[1] += 1;
                    };
                let stream = first
                    .key_by::<u64, _>(key)
                    .connect(second, second_key)
                    .parallelism(parallelism)
                    .process(on_first, on_second)
                    .boxed();
                self.plain_exchange(stream, parallelism, node, timed)
            }
            _ => {
                let on_first =
                    move |record: Plain, state: &mut State, _: &u64, out: &mut Output<'_, Plain>| {
                        let id = run!(a, Plain, record, out);
                        a.count(key_of(id, keys), state[0]);
                        state[0] += 1;
                    };
                let on_second =
                    move |record: (u64, u64, &str), seen: &mut u64, out: &mut Output<'_, Plain>| {
                        *seen ^= run!(b, Text, record, out);
                    };
                let stream = first
                    .key_by::<u64, _>(key)
                    .connect_broadcast(second)
                    .parallelism(parallelism)
                    .process(on_first, on_second)
                    .boxed();
                self.plain_exchange(stream, parallelism, node, timed)
            }
        };
        self.keep(built, Open::Plain);
    }

    /// An operator with two outputs.
    fn side<T: Item>(&mut self, built: Built<T>, as_open: fn(Built<T>) -> Open) {
        let Built { stream, node, parallelism, timed } = built;
        let mut instance = self.instance("side output", node, timed);
        let mut aside = self.instance("side output again", node, None);
        let (op, salt) = (self.op(), self.rng.next());
        let (side_op, side_salt) = (self.op(), self.rng.next());
        let f = move |record: T::Ref<'_>, out: &mut Output<'_, T>, side: &mut Output<'_, Text>| {
            let id = instance.take::<T>(record, out.timestamp());
            aside.take::<T>(record, side.timestamp());
            op.apply(id, salt, |child| instance.emit::<T, _>(child, |view| out.emit(view)));
            side_op.apply(id, side_salt, |child| aside.emit::<Text, _>(child, |view| side.emit(view)));
        };
        let (main, side) = stream.side_output::<T, Text, _>(f);
        let side_node = self.model.node(Node::Applied(node, side_op, side_salt));
        self.keep(Built { stream: side, node: side_node, parallelism, timed }, Open::Text);
        let node = self.model.node(Node::Applied(node, op, salt));
        let built = self.plain_exchange(main.boxed(), parallelism, node, timed);
        self.keep(built, as_open);
    }

    /// Any exchange.
    fn exchange<T: Item>(
        &mut self,
        stream: Stream<T, BoxedChain<T>>,
        from: u32,
        node: NodeIndex,
        timed: Option<bool>,
    ) -> Built<T> {
        let mut parallelism = self.parallelism();
        let mut node = node;
        let (offset, salt) = (self.rng.below(4) as u32, self.rng.next());
        let stream = match self.rng.below(8) {
            0 => stream.rebalance(),
            1 => stream.rescale(),
            2 => stream.shuffle(salt | 1),
            3 => stream.global(),
            4 => stream.partition_custom(move |record, lanes| (mix(T::id(record)) % lanes as u64) as usize),
            5 => {
                parallelism = from;
                stream.forward()
            }
            6 => {
                node = self.model.node(Node::Times(node, u64::from(parallelism)));
                stream.broadcast()
            }
            _ => stream.key_by::<u64, _>(move |record| key_of(T::id(record), 40)).into_stream(),
        };
        Built { stream: stream.parallelism(parallelism).shard_offset(offset), node, parallelism, timed }
    }

    /// One of the two plainest exchanges, so that not every operator is compiled with every exchange.
    fn plain_exchange<T: Item>(
        &mut self,
        stream: Stream<T, BoxedChain<T>>,
        from: u32,
        node: NodeIndex,
        timed: Option<bool>,
    ) -> Built<T> {
        let (stream, parallelism) = if self.rng.once_in(2) {
            (stream.forward(), from)
        } else {
            let parallelism = self.parallelism();
            (stream.rebalance().parallelism(parallelism), parallelism)
        };
        Built { stream, node, parallelism, timed }
    }

    fn sink<T: Item>(&mut self, built: Built<T>) {
        if self.rng.once_in(3) {
            // An operator and its sink in one chain.
            let (stream, node, timed) = self.flat::<T, T>(built);
            let sink = self.random_sink(node, timed);
            return stream.sink("sink", sink);
        }
        let Built { stream, node, timed, .. } = built;
        let sink = self.random_sink(node, timed);
        stream.sink("sink", sink);
    }

    fn random_sink<T: Item>(
        &mut self,
        node: NodeIndex,
        timed: Option<bool>,
    ) -> impl Fn(&SubtaskInfo) -> Result<NotingSink<T>, SourceError> + Clone + Send + Sync + 'static + use<T>
    {
        let instance = self.instance("sink", node, timed);
        move |_: &SubtaskInfo| {
            Ok(NotingSink { instance: instance.clone(), finished: false, item: std::marker::PhantomData })
        }
    }
}

/// Notes what it is given.
struct NotingSink<T> {
    instance: Instance,
    finished: bool,
    item: std::marker::PhantomData<fn(T)>,
}

impl<T: Item> Sink for NotingSink<T> {
    type Item = T;

    fn write(&mut self, record: T::Ref<'_>, at: Timestamp) -> Result<(), SourceError> {
        if self.finished {
            return Err("a record came after the end".into());
        }
        self.instance.take::<T>(record, at);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        if std::mem::replace(&mut self.finished, true) {
            return Err("the end came twice".into());
        }
        Ok(())
    }
}

/// Emits a number of records, and what is none, in a random rhythm.
struct RandomSource<T> {
    instance: Instance,
    waker: Waker,
    rng: Rng,
    timestamps: bool,
    records: u64,
    emitted: u64,
    idle: bool,
    item: std::marker::PhantomData<fn() -> T>,
}

impl<T: Item> Source for RandomSource<T> {
    type Item = T;

    const REPLAYS: bool = true;

    fn poll<C: Collector<T>>(&mut self, out: &mut SourceOutput<'_, T, C>) -> Result<SourcePoll, SourceError> {
        while out.ready() {
            if self.emitted == self.records {
                return Ok(SourcePoll::Done);
            }
            match self.rng.below(160) {
                0..5 => return Ok(SourcePoll::More),
                5..8 => return Ok(SourcePoll::WaitUntil(out.now_ns() + self.rng.below(400_000))),
                8 => {
                    if self.rng.once_in(4) {
                        // News that comes while the source is asked is not lost either.
                        self.waker.wake();
                    } else {
                        self.instance.ledger().waits(self.waker.clone());
                    }
                    return Ok(SourcePoll::Wait);
                }
                9..14 => {
                    self.become_active(out);
                    out.control(Control::Watermark(self.emitted as i64));
                }
                14 => {
                    self.idle = true;
                    out.control(Control::Idle);
                }
                _ => {
                    self.become_active(out);
                    let id = source_id(self.instance.number, self.emitted, self.emitted);
                    let at = if self.timestamps { time_of(id) } else { NO_TIMESTAMP };
                    self.emitted += 1;
                    self.instance.ledger().emitted(self.instance.point(), id);
                    self.instance.emit::<T, _>(id, |view| out.emit_at(view, at));
                }
            }
        }
        Ok(SourcePoll::More)
    }

    fn snapshot(&mut self, state: &mut Vec<u8>) -> Result<(), SourceError> {
        state.extend_from_slice(&self.emitted.to_le_bytes());
        Ok(())
    }

    /// The records are the same again, the rhythm is another.
    fn restore(&mut self, state: &[u8]) -> Result<(), SourceError> {
        self.emitted = u64::from_le_bytes(state.try_into()?);
        Ok(())
    }
}

impl<T: Item> RandomSource<T> {
    fn become_active<C: Collector<T>>(&mut self, out: &mut SourceOutput<'_, T, C>) {
        if std::mem::take(&mut self.idle) {
            out.control(Control::Active);
        }
    }
}
