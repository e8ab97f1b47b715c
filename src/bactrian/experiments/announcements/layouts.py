"""Layouts of made-up announcements: how headers, bodies and endings are put on the page.

``[name]`` is a slot, filled by :mod:`bactrian.experiments.announcements.generator`. The slots ``speaker``, ``SPEAKER``,
``surname`` and ``bare`` name the speaker, ``location`` and ``place`` the place, ``stime`` and ``etime`` its times, and
``range`` both times or the first alone; they are what a tagger should find. All others are there to be told apart from
them: other people, places and times among them. Those to learn from and those to test on share no header, body,
sentence or ending; ways to write a time or a place are partly the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layouts:
    """The parts of which one split puts announcements together."""

    headers: tuple[str, ...]
    bodies: tuple[str, ...]
    prose: tuple[str, ...]  #: sentences of an abstract
    endings: tuple[str, ...]
    ranges: tuple[str, ...]
    places: tuple[str, ...]  #: ways to write a building and a room
    times: tuple[str, ...]  #: ways to write a time of day


TRAINING = Layouts(
    headers=(
        "Type:     [path]\nTopic:    [group] Seminar\nDates:    [shortdate]\nTime:     [range]\n"
        "PostedBy: [poster] on [postdate] at [clock] from [machine]\nAbstract:\n\n",
        "Type:     [path]\nWho:      [speaker]\n          [school]\nTopic:    [Subject]\nDates:    [shortdate]\n"
        "Time:     [range]\nPlace:    [location]\nHost:     [host]\n"
        "PostedBy: [poster] on [postdate] at [clock] from [machine]\nAbstract:\n\n",
        "Subject: [group] talk by [speaker], [day], [stime]\nFrom: [poster]\nSent: [postdate] [clock]\n\n",
        "From: [host]\nTo: [group] list\nSubject: reminder: seminar today at [stime] in [place]\n\n",
        "Topic:    [Subject]\nDates:    [shortdate]\nTime:     [stime]\n"
        "PostedBy: [poster] on [postdate] at [clock] from [machine]\n\n",
        "Date: [postdate] [clock]\nFrom: [poster], [school2]\nSubject: [surname] on [subject], [day] [stime]\n\n",
        "Subject: [Subject] ([speaker], [school])\nSent by [poster] at [clock]\nTo: [group]\n\n",
        "Type:     [path]\nTopic:    [Subject], [speaker]\nDates:    [shortdate]\nHost:     [host]\n"
        "Time:     [range]\nPostedBy: [poster] on [postdate] at [clock] from [machine]\nAbstract:\n\n",
        "Subject: [day], [place], [stime]: [group] colloquium\nFrom: [host]\n\n",
    ),
    bodies=(
        "                    [GROUP] SEMINAR\n\n                    [speaker]\n                    [school]\n\n"
        "                    [Subject]\n\n                    [day], [date]\n                    [range]\n"
        "                    [location]\n\n",
        "SPEAKER:  [speaker], [school]\nTITLE:    [Subject]\nDATE:     [day], [date]\nTIME:     [range]\n"
        "PLACE:    [location]\n\n",
        "[speaker] of [school] will give a talk on [subject] on [day], [date],\nat [stime] in [location]. "
        "[host] is the host.\n\n",
        'The [group] group is pleased to announce a lecture by [speaker]\n([school]): "[Subject]".\n'
        "It takes place in [location] on [day] from [range].\nCoffee will be served at [othertime].\n\n",
        "Date:   [day], [date]\nTime:   [range] (refreshments at [othertime])\nPlace:  [location]\n\n"
        "            [Subject]\n\n            [SPEAKER]\n            [school]\n\n",
        "*** Note unusual time and place ***\n\nThe talk by [speaker] has been moved from [othertime] to [stime],\n"
        'and from [otherplace] to [location]. The title is still\n"[Subject]".\n\n',
        "This week [surname] will speak about [subject].\n\n  When:   [day] [date], [range]\n"
        "  Where:  [location]\n  Who:    [speaker], [school]\n\n",
        "Title:    [Subject]\nWhen:     [range], [day]\nWhere:    [location]\nSpeaker:  [SPEAKER]\n"
        "          [school]\nHost:     [host]\n\n",
        "[day], [date]\n[stime]\n[location]\n\n[speaker]\n[school]\n\n[Subject]\n\n",
        "On [day] at [stime] the [group] group will host [speaker] from [school].\nThe lecture, about [subject], is in "
        "[location]. Tea in [otherplace] at [othertime].\n\n",
        "Please come to [location] on [day]: [speaker]\n([school]) will talk about [subject],\nbeginning at [stime]. "
        "Introduction by [host].\n\n",
        "            SPECIAL LECTURE\n            [location], [stime]\n            [SPEAKER], [school]\n"
        "            [Subject]\n\n(Cookies at [othertime] in [otherplace].)\n\n",
        "Location:  [location]\nSpeaker:   [speaker]\nSubject:   [Subject]\nStarts:    [stime], [day], [date]\n\n",
        "Change of room: [surname] speaks in [location] instead of [otherplace],\nbut still at [stime], not at "
        "[othertime].\n\n",
        "A presentation by [speaker], [school], in [location] from [range]:\n\n      [Subject]\n\n",
    ),
    prose=(
        "In this talk [surname] reviews recent [things] for [subject] and shows what they have in common.",
        "We describe [things] for [subject] and report on two years of [things].",
        "[bare] will argue that most [things] rest on [things] nobody has checked.",
        "Joint work with [other] and [other2].",
        "The second half is about [subject2], where [things] are harder to come by.",
        "Recent work by [other] at [school2] has called this into question.",
        "No knowledge of [subject2] is needed.",
        "[surname] received a doctorate from [school2] and has worked on [subject2] since.",
        "An earlier version was given in [otherplace] last spring.",
        "Then [bare] turns to [subject2].",
        "As [other] has pointed out, [things] of this kind are rare.",
        "[surname] will also present [things] on [subject2].",
        "Before joining [school], [bare] was at [school2] with [other].",
    ),
    endings=(
        "If you would like to meet with [surname], please contact [poster] ([phone]).\n",
        "Appointments with [bare] on [day]: see [poster] in [otherplace] before [othertime].\n",
        "Everybody is welcome. Lunch with the speaker leaves from [otherplace] at [othertime].\n",
        "Questions to [poster], phone [phone].\n",
        "The next seminar is by [other] on [nextday] at [othertime].\n",
        "[surname] will be in [otherplace] after the talk; write to [poster] to arrange a meeting.\n",
        "Sign up for dinner with [other] by [othertime], or call [phone].\n",
        "-- \n[poster]\n[school]\n",
        "",
    ),
    ranges=("[stime] - [etime]", "[stime]-[etime]", "[stime] to [etime]", "[stime] until [etime]"),
    places=(
        "{building} {room}",
        "{room} {building}",
        "{building}, Room {room}",
        "Room {room}, {building}",
        "{short} {room}",
        "Lecture Room {room}, {building}",
        "{building} auditorium",
    ),
    times=("{hour}:{minute} PM", "{hour}:{minute}pm", "{hour}:{minute} p.m.", "{hour}:{minute}", "{hour}:{minute} pm"),
)

TESTING = Layouts(
    headers=(
        "Type:     [path]\nTopic:    [speaker] on [subject]\nDates:    [shortdate]\nTime:     [range]\n"
        "Host:     [host]\nPostedBy: [poster] on [postdate] at [clock] from [machine]\nAbstract:\n\n",
        "Subject: [group] colloquium, [day] [stime], [place]\nFrom: [poster], [school2]\nDate: [postdate], [clock]\n\n",
        "Type:     [path]\nWho:      [speaker], [school]\nTopic:    [group] Lunch\nDates:    [shortdate]\n"
        "Time:     [range]\nPostedBy: [poster] on [postdate] at [clock] from [machine]\nAbstract:\n\n",
        "To: everybody in [otherplace]\nFrom: [host]\nSubject: [Subject] ([surname])\n"
        "Sent at [clock] on [postdate]\n\n",
    ),
    bodies=(
        "            [GROUP] COLLOQUIUM\n        [day], [date], [range]\n        [location]\n\n"
        "        [Subject]\n        [speaker]\n        [school]\n\n",
        "Title:     [Subject]\nSpeaker:   [SPEAKER]\n           [school]\nWhen:      [day], [date] at [stime]\n"
        "Where:     [location]\nHost:      [host]\n\n",
        "On [day], [date], the [group] department will host [speaker] from\n[school], who will talk about [subject].\n"
        "The colloquium begins at [stime] in [location].\nTea is at [othertime] in [otherplace].\n\n",
        "Please join us in [location] at [stime] on [day]\nfor a presentation by [speaker], [school]:\n\n"
        "      [Subject]\n\n",
        "SPECIAL SEMINAR\n\n[speaker]\n[school]\n\nLocation: [location]\nTime: [range], [day] [date]\n"
        "(Cookies at [othertime]. Introduction: [host].)\n\n",
        "There is a change: [surname] speaks in [location], not in [otherplace],\nand at [stime] instead of "
        "[othertime]. Topic: [subject].\n\n",
    ),
    prose=(
        "[surname] will present new [things] on [subject].",
        "What do [things] tell us about [subject]?",
        "We compare [things] with [things], and find that neither is enough.",
        "This is a joint project with [other] of [school2].",
        "As [other] and [other2] have pointed out, [things] matter more than [things].",
        "[bare] begins with a short history of [subject2].",
        "The talk ends with open questions about [subject2].",
        "Before coming to [school2], [bare] spent five years on [subject2].",
    ),
    endings=(
        "To arrange a meeting with [surname], write to [poster] or call [phone].\n",
        "[bare] will be in [otherplace] all afternoon; ask [poster] for an appointment.\n",
        "Dinner with the speaker: sign up with [other] by [othertime].\n",
        "On [nextday] at [othertime] we shall hear [other] in [otherplace].\n",
        "-- [poster], [phone]\n",
        "",
    ),
    ranges=("[stime] - [etime]", "[stime]-[etime]", "[stime] until [etime]", "[stime] -- [etime]"),
    places=(
        "{building} {room}",
        "{building}, Room {room}",
        "Room {room}, {building}",
        "{room} {building}",
        "{building}, {room}",
    ),
    times=("{hour}:{minute} PM", "{hour}:{minute}pm", "{hour}:{minute}", "{hour}:{minute} pm", "{hour}:{minute} P.M."),
)
