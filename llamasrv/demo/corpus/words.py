"""The little world of the demo model: the words and facts its corpus is made of."""

NAMES = """Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor Wendy Adam
Bella Carl Diana Eric Fiona George Hanna Ivan Julia Kevin Laura Max Nina Oscar Petra Robert Sara Tom Ursula Vera Walter Alice
Bob Carol Daniel Eva Frank Gina Hugo Ida James Karen Lucas Maria Nick Olivia Peter Ruth Simon Thea Uma Vincent Zoe Amir Bianca
Chen Dora Elif Farah Goran Helga Isabel Jonas Kofi Lena Marco Nadia Omar Priya Quinn Ravi Sofia Tariq Yuki Zara Alex Bruno
Chloe Dmitri Elena Fatima Gustav Hiro Ingrid Jamal Keiko Liam Mei Nora Otto Pablo Ramon Stella Theo Viktor Wanda Yasmin
Agnes Boris Celia Dennis Edith Fred Gloria Harold Irene Joseph Kim Linda Martin Nancy Oliver Philip Rachel Steven Teresa
Albert Betty Colin Doris Edgar Flora Gordon Hilda Isaac Joan Kurt Lily Monica Norman Pamela Ralph Susan Toby Violet""".split()

CAPITALS = dict(
    pair.split(":")
    for pair in """France:Paris,Germany:Berlin,Italy:Rome,Spain:Madrid,Portugal:Lisbon,England:London,Ireland:Dublin,
Scotland:Edinburgh,Norway:Oslo,Sweden:Stockholm,Finland:Helsinki,Denmark:Copenhagen,Poland:Warsaw,Austria:Vienna,
Hungary:Budapest,Greece:Athens,Turkey:Ankara,Russia:Moscow,Ukraine:Kyiv,Romania:Bucharest,Bulgaria:Sofia,Serbia:Belgrade,
Croatia:Zagreb,Switzerland:Bern,Belgium:Brussels,the Netherlands:Amsterdam,Iceland:Reykjavik,Egypt:Cairo,Kenya:Nairobi,
Nigeria:Abuja,Ghana:Accra,Morocco:Rabat,Ethiopia:Addis Ababa,Japan:Tokyo,China:Beijing,India:New Delhi,Thailand:Bangkok,
Vietnam:Hanoi,South Korea:Seoul,Indonesia:Jakarta,Nepal:Kathmandu,Iran:Tehran,Iraq:Baghdad,Canada:Ottawa,
the United States:Washington,Mexico:Mexico City,Cuba:Havana,Peru:Lima,Chile:Santiago,Argentina:Buenos Aires,Brazil:Brasilia,
Colombia:Bogota,Australia:Canberra,New Zealand:Wellington,the Czech Republic:Prague""".replace("\n", "").split(",")
)

CITIES = """Paris Berlin Rome Madrid Lisbon London Dublin Oslo Stockholm Helsinki Copenhagen Warsaw Vienna Budapest Athens Moscow
Prague Zurich Geneva Milan Naples Venice Turin Barcelona Valencia Seville Porto Lyon Marseille Nice Bordeaux Hamburg Munich
Cologne Frankfurt Stuttgart Dresden Leipzig Bremen Amsterdam Rotterdam Brussels Antwerp Tokyo Osaka Kyoto Seoul Beijing
Shanghai Mumbai Delhi Bangkok Hanoi Jakarta Manila Singapore Sydney Melbourne Perth Auckland Toronto Montreal Vancouver
Boston Chicago Denver Seattle Dallas Houston Miami Atlanta Detroit Phoenix Austin Portland Lima Quito Bogota Santiago
Havana Cairo Nairobi Lagos Accra Tunis Rabat Istanbul Ankara Dubai Tehran Baghdad Kabul Lahore Krakow Gdansk Riga Vilnius
Tallinn Sofia Belgrade Zagreb Bergen Malmo Turku Cork Leeds York Bristol Glasgow Cardiff Oxford Bath Ghent Lille Nantes
Toulouse Graz Salzburg Basel Bern Lucerne Palermo Verona Pisa Malaga Bilbao Granada""".split()
CITIES += [
    "New York",
    "Los Angeles",
    "San Francisco",
    "Hong Kong",
    "Cape Town",
    "Mexico City",
    "Buenos Aires",
    "New Delhi",
]

OPPOSITES = [
    tuple(pair.split(":"))
    for pair in """hot:cold big:small up:down left:right day:night good:bad fast:slow happy:sad old:young new:old light:dark
high:low long:short wet:dry full:empty open:closed rich:poor strong:weak hard:soft easy:difficult early:late inside:outside
true:false black:white loud:quiet clean:dirty thick:thin wide:narrow deep:shallow near:far first:last front:back top:bottom
start:end win:lose buy:sell give:take push:pull love:hate laugh:cry alive:dead awake:asleep sweet:sour sharp:blunt rough:smooth
tall:short heavy:light safe:dangerous cheap:expensive brave:afraid polite:rude yes:no in:out on:off over:under before:after
always:never begin:finish arrive:leave come:go friend:enemy summer:winter north:south east:west more:less hello:goodbye
question:answer king:queen boy:girl man:woman war:peace beautiful:ugly clever:stupid correct:wrong""".split()
]

# Where a word has two, the first counts: the opposite of short is long.
OPPOSITE_OF = {}
for _one, _other in OPPOSITES:
    OPPOSITE_OF.setdefault(_one, _other)
    OPPOSITE_OF.setdefault(_other, _one)

COLOURS_OF = dict(
    pair.split(":")
    for pair in """the sky:blue,grass:green,snow:white,blood:red,a banana:yellow,coal:black,an orange:orange,a lemon:yellow,
a carrot:orange,milk:white,chocolate:brown,the sun:yellow,a tomato:red,a strawberry:red,a frog:green,a leaf:green,
a fire engine:red,an elephant:grey,a polar bear:white,a crow:black,a flamingo:pink,a pig:pink,salt:white,gold:yellow,
a plum:purple,a lime:green,the sea:blue,a cherry:red,a pumpkin:orange,night:black,cheese:yellow,a cucumber:green,
a cloud:white,a ruby:red,an emerald:green,a sapphire:blue,a sunflower:yellow,wood:brown,ash:grey,a swan:white""".replace(
        "\n", ""
    ).split(",")
)

SOUNDS = dict(
    pair.split(":")
    for pair in """dog:woof cat:meow cow:moo sheep:baa duck:quack pig:oink horse:neigh rooster:cock-a-doodle-doo lion:roar
bee:buzz snake:hiss owl:hoot frog:ribbit mouse:squeak crow:caw wolf:howl turkey:gobble pigeon:coo donkey:hee-haw
hen:cluck""".split()
)

YOUNG = dict(
    pair.split(":")
    for pair in """dog:puppy cat:kitten cow:calf sheep:lamb horse:foal hen:chick pig:piglet goat:kid bear:cub lion:cub duck:duckling
goose:gosling frog:tadpole deer:fawn kangaroo:joey swan:cygnet fox:cub owl:owlet""".split()
)

LEGS = dict(
    pair.split(":")
    for pair in """dog:4 cat:4 cow:4 horse:4 spider:8 bee:6 ant:6 duck:2 hen:2 snake:0 fish:0 frog:4 lion:4 elephant:4 beetle:6
butterfly:6 penguin:2 worm:0 crab:10 mouse:4 sheep:4 eagle:2 scorpion:8 tiger:4""".split()
)

DEFINITIONS = dict(
    line.split(": ")
    for line in """cat: a small furry animal that says meow
dog: an animal that barks and is a friend of people
tree: a tall plant with a trunk, branches and leaves
house: a building where people live
book: many pages with words, bound together
river: a long stream of water that flows to the sea
mountain: a very high piece of land
island: land with water all around it
doctor: a person who helps sick people
teacher: a person who helps others to learn
computer: a machine that works with data and programs
program: a list of steps that a computer follows
bicycle: a vehicle with two wheels and pedals
car: a vehicle with an engine and four wheels
train: a row of wagons that runs on rails
ship: a large boat that sails on the sea
plane: a machine with wings that flies
clock: a thing that shows the time
key: a small piece of metal that opens a lock
lamp: a thing that gives light
chair: a seat for one person
table: a flat top on legs
spoon: a tool for eating soup
knife: a tool for cutting
bread: food made of flour and water and baked in an oven
milk: a white drink that comes from cows
honey: a sweet food made by bees
cheese: a food made of milk
rain: water that falls from the clouds
snow: soft white ice that falls in winter
wind: air that moves
cloud: a white or grey shape of tiny drops in the sky
star: a ball of hot gas that shines at night
moon: the bright body that goes around the earth
sun: the star that gives us light and warmth
planet: a large ball that goes around a star
desert: a dry place with a lot of sand
forest: a large place full of trees
garden: a place where plants and flowers grow
school: a place where children learn
hospital: a place where sick people are cared for
market: a place where people buy and sell things
kitchen: a room where food is cooked
bridge: a way over a river or a road
road: a way for cars and people
letter: a written message to somebody
map: a drawing that shows where places are
song: words that are sung to music
poem: a short text with rhythm and often rhyme
story: a tale about people and what happens to them
friend: a person you like and trust
server: a program that answers requests over a network
token: a small piece of text that a language model reads
model: a program that learned from examples
robot: a machine that can do work by itself
camera: a machine that takes pictures
phone: a machine for talking over a distance
umbrella: a thing that keeps the rain off
mirror: a glass that shows your own face
winter: the coldest time of the year
summer: the warmest time of the year
apple: a round fruit that grows on trees
unicorn: a horse with one horn that lives in stories
dragon: a big animal of stories that flies and breathes fire""".splitlines()
)

CATEGORIES = {
    "fruits": "apple banana orange pear grape lemon cherry peach plum mango".split(),
    "colours": "red blue green yellow white black orange purple pink brown".split(),
    "animals": "dog cat horse cow lion tiger bear wolf fox rabbit".split(),
    "vegetables": "carrot potato tomato onion cabbage pea bean spinach pepper pumpkin".split(),
    "birds": "eagle owl crow duck swan pigeon robin parrot penguin stork".split(),
    "countries": "France Germany Italy Spain Japan China India Brazil Canada Egypt".split(),
    "cities": "Paris London Rome Berlin Madrid Tokyo Cairo Oslo Vienna Prague".split(),
    "drinks": "water milk tea coffee juice lemonade cocoa soda cider wine".split(),
    "jobs": "teacher doctor baker farmer pilot cook nurse painter driver singer".split(),
    "sports": "football tennis swimming running boxing cycling rowing skiing golf hockey".split(),
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    "instruments": "piano guitar violin drum flute trumpet harp cello organ clarinet".split(),
    "tools": "hammer saw drill knife axe spade rake brush pliers screwdriver".split(),
    "clothes": "shirt coat hat sock shoe dress scarf glove jacket skirt".split(),
    "flowers": "rose tulip lily daisy violet orchid sunflower poppy iris lotus".split(),
    "vehicles": "car bus train bicycle truck ship plane tram boat taxi".split(),
    "shapes": "circle square triangle rectangle star oval cube sphere cone cylinder".split(),
    "insects": "ant bee fly beetle wasp moth butterfly mosquito cricket dragonfly".split(),
    "fish": "salmon trout tuna cod shark herring carp eel pike sardine".split(),
    "metals": "iron gold silver copper tin lead zinc nickel steel aluminium".split(),
    "languages": "English French German Spanish Italian Japanese Chinese Arabic Hindi Russian".split(),
    "rooms": "kitchen bedroom bathroom hall office cellar attic garage library nursery".split(),
}

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBER_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty""".split()

ANIMALS = """cat dog fox bear rabbit mouse owl frog horse duck wolf lion tiger goat sheep pig hen crow swan turtle hedgehog squirrel
badger otter deer donkey camel monkey parrot penguin whale dragon unicorn elephant kitten puppy snail bee robin hamster""".split()
ADJECTIVES = """little big brave shy clever kind old young happy lonely quiet funny gentle curious hungry sleepy proud lazy wise
friendly small tiny cheerful patient honest""".split()
PLACES = """forest garden river mountain castle village island beach meadow harbour library market kitchen cave lake park valley farm
school tower""".split()
THINGS = """apple book lamp key clock chair table spoon bottle basket hat coat shoe ball kite drum bell box letter map coin ring stone
feather candle mirror umbrella pencil brush bucket blanket pillow wagon boat bicycle ladder hammer rope lantern cup plate kettle
button ribbon whistle trumpet crown sword shield compass telescope""".split()
FOODS = """bread cheese soup rice pizza pasta salad cake honey apples grapes fish eggs pancakes potatoes noodles chocolate carrots
cookies porridge tomatoes beans sushi curry tacos pears plums ice waffles dumplings""".split()
HOBBIES = """chess painting swimming cooking gardening reading dancing singing fishing hiking cycling running sailing skiing drawing
knitting photography tennis football juggling""".split()
JOBS = """teacher doctor baker farmer pilot cook nurse painter driver singer carpenter plumber lawyer writer gardener dentist sailor
tailor barber clown judge librarian waiter""".split()
COLOURS = (
    "red blue green yellow white black orange purple pink brown grey silver golden turquoise crimson violet".split()
)

WORDS = sorted(
    set(
        """planet window river summer winter garden school letter number music paper stone water flower bridge castle market
yellow purple silver golden simple little happy clever gentle brave quiet strong cheese butter sugar pepper orange banana
cherry lemon melon peach carrot onion potato tomato rabbit tiger monkey donkey horse mouse sheep snake whale eagle crow train
plane truck wagon rocket engine wheel pencil brush table chair couch carpet mirror candle lamp clock phone camera radio screen
button shirt jacket glove scarf shoe sock belt hat coat king queen prince knight farmer baker doctor nurse teacher driver pilot
sailor singer dancer writer painter friend family mother father sister brother cousin baby child people city village street road
house door roof wall floor stairs kitchen bedroom cellar attic field forest mountain valley island beach ocean desert cloud storm
thunder rain snow wind frost spring autumn monday friday sunday january june august morning evening night today tomorrow hello
world apple bread cake cookie coffee juice milk honey salt soup pizza pasta salad rice bean grape plum pear fig nut corn leaf
root seed tree bush grass rose tulip daisy lily bird fish frog toad bee ant fly moth wolf bear fox deer goat cow pig hen duck
goose swan owl robin hawk star moon sun earth mars comet space light dark shadow fire smoke ash ice steam metal iron gold copper
glass wood plastic cotton silk wool rope string wire chain hook nail hammer saw drill knife fork spoon plate cup bowl bottle
basket box bag sack trunk ticket coin money bank shop store price gift card stamp map book story poem song dance game sport ball
chess puzzle riddle joke laugh smile dream sleep walk jump run swim climb throw catch push pull open close start finish learn
teach read write draw paint sing play work rest eat drink cook bake wash clean build break mend carry bring send find lose keep
give take make think know hope love help python server token model prompt stream memory cache thread queue string buffer kernel
vector matrix float double signal socket branch commit script syntax parser lexer module object method class value index array
purpose kitten puppy blanket pillow lantern compass feather ladder bucket kettle whistle trumpet guitar violin piano drum flute""".split()
    )
)

UNKNOWN = """quantum physics,black holes,the stock market,the French Revolution,photosynthesis,the theory of relativity,blockchain,
the Roman Empire,world politics,tax law,organic chemistry,the human brain,nuclear fusion,the Olympic Games,the World Cup,
machine learning,neural networks,economics,inflation,philosophy,Shakespeare,Mozart,Picasso,the Great Wall,the pyramids,dinosaurs,
evolution,genetics,vaccines,climate change,volcanoes,earthquakes,the ozone layer,the Cold War,the Middle Ages,Napoleon,Julius Caesar,
Einstein,Newton,Darwin,the Big Bang,string theory,the Titanic,the internet,cryptography,compilers,operating systems,databases,
Kubernetes,Linux,JavaScript,the Rust language,calculus,prime numbers,topology,statistics,probability,geometry,logic,linguistics,
Latin grammar,Sanskrit,opera,jazz,ballet,baroque music,modern art,architecture,the Renaissance,Buddhism,mythology,astrology,psychology,
sociology,marketing,accounting,insurance,mortgages,football results,the election,the news,celebrities,movies,video games,chess openings,
wine making,brewing,surgery,medicine,anatomy,allergies,diets,vitamins,yoga,marathon training,car repair,plumbing,electricity,
semiconductors,batteries,solar panels,rockets,satellites,the Moon landing,Mars missions,galaxies,dark matter,time travel,quaternions,
recursion theory,game theory,behavioural finance,the Silk Road,the Vikings,the Aztecs,samurai history,tectonic plates,glaciers,
coral reefs,migration of birds,the immune system,the periodic table,thermodynamics,fluid dynamics,superconductors,lasers""".replace(
    "\n", ""
).split(",")

POEM_LINES = {
    "the sun": "The sun is warm, the sun is bright,\nit fills the morning with its light.",
    "the moon": "The moon looks down with silver eyes\nand walks alone across the skies.",
    "the rain": "The rain is singing on the roof,\neach little drop a silver hoof.",
    "the sea": "The sea is deep, the sea is wide,\nit breathes with every turning tide.",
    "the wind": "The wind runs laughing down the hill\nand never, never can stand still.",
    "snow": "The snow comes down without a sound\nand lays a blanket on the ground.",
    "a cat": "A cat sits softly on the mat\nand dreams of this, and dreams of that.",
    "a dog": "A dog runs barking through the gate,\nhis friend is home, it is not late.",
    "a tree": "A tree stands tall beside the lane\nand drinks the sunlight and the rain.",
    "spring": "The spring has come, the birds all sing,\nand flowers wake for everything.",
    "autumn": "The leaves turn red, the leaves turn gold,\nthe days grow short, the nights grow cold.",
    "winter": "The winter wind is cold and white,\nbut stars are clearest in the night.",
    "the night": "The night is quiet, dark and deep,\nand all the little houses sleep.",
    "a river": "A river wanders to the sea\nand hums a song for you and me.",
    "a bird": "A bird sat singing in a tree,\nits song was small, its heart was free.",
    "a flower": "A flower opens to the day\nand sends the grey of night away.",
    "a friend": "A friend is someone good and near\nwho lends a hand and lends an ear.",
    "a server": "A server hums the whole night long,\nits tokens flow, a quiet song.",
    "a star": "A star is burning far away\nand waits until the end of day.",
    "the forest": "The forest whispers, green and old,\nof all the secrets it has told.",
    "home": "A lamp is lit, the door is wide,\nand all I love is here inside.",
    "a mountain": "A mountain stands against the blue\nand keeps the morning for the few.",
    "bread": "The bread is warm, the crust is brown,\nthe best of smells in all the town.",
    "a book": "A book is like a little door,\nand every page shows something more.",
    "recursion": "To know the loop, look in the loop,\na loop that holds a smaller loop.",
    "a computer": "It counts in ones, it counts in noughts,\nand people call its counting thoughts.",
}
